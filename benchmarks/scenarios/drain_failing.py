"""Drain jobs none of which goes well: an outage makes everything fail at once.

Every job fails for good, is to be tried again in an hour, or snoozes for one, and only errors are
logged: one line for each job that has failed for good. *unlogged* are such jobs without that line,
*logged* jobs that are tried again with a line for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.contenders.contender import Contender
from benchmarks.drains import Drains
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.turns import in_turns
from penstock import Snooze, logs

HOUR = 3600.0


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second if all go well, and the share of it if none does."""
    drains = Drains(contender, scale)

    def rate(level: str, act: Callable[[], None] | None, retries: Any, name: str) -> float:
        with tempfile.TemporaryFile("w") as log:
            logs.configure("text", level, log)
            return drains.rate(name, act=act, task={"retries": retries})

    return in_turns(
        {
            "plain": partial(rate, "error", None, 0),
            "failed": partial(rate, "error", _fail, 0),
            "retried": partial(rate, "error", _fail, [HOUR]),
            "snoozed": partial(rate, "error", _snooze, 0),
            "unlogged": partial(rate, "critical", _fail, 0),
            "logged": partial(rate, "warning", _fail, [HOUR]),
        },
        scale,
    )


def _fail() -> None:
    raise ConnectionError("the payment service does not answer")


def _snooze() -> None:
    raise Snooze(HOUR)


THIRD = (Goal(least=0.3),)

SCENARIO = Scenario(
    about="drain jobs that all fail, as a share of plain",
    figures=(
        Figure("plain", "jobs/s"),
        Figure("failed", "of plain", (Goal(least=0.15),)),
        Figure("retried", "of plain", THIRD),
        Figure("snoozed", "of plain", THIRD),
        Figure("unlogged", "of plain", THIRD),
        Figure("logged", "of plain", (Goal(least=0.15),)),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
    contenders=("penstock",),
)
