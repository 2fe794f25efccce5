"""Enqueue many jobs with one call, each way of asking for more than a plain job.

What counts is the share of the plain rate that each leaves. A key, an id or a unique key of every
single job is what a function of its arguments says, as tasks declare it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.contenders.contender import Contender
from benchmarks.locations import Location
from benchmarks.scenario import Figure, Figures, Goal, Scale, Scenario
from benchmarks.stopwatch import seconds
from benchmarks.turns import in_turns
from penstock import Penstock

JOBS = 20_000

Items = Sequence[tuple[Any, ...]]

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "key": {"key": "tenant-7"},
    "keys": {"key": lambda number, text: f"tenant-{number % 100}"},
    "delay": {"delay": "1h"},
    "tags": {"tags": ["import", "nightly"]},
    "payload": {},
    "ids": {"id": lambda number, text: f"order-{number}"},
    "unique": {"unique": lambda number, text: f"order-{number}"},
}


def measure(contender: Contender, scale: Scale) -> Figures:
    """Jobs per second without options, and the share of it with each."""
    count = scale.jobs(JOBS)
    plain: Items = [(number,) for number in range(count)]
    large: Items = [(number, "x" * 1000) for number in range(count)]
    ways: dict[str, Callable[[str], float]] = {
        name: partial(_rate, contender.location, options, large if name == "payload" else plain)
        for name, options in OPTIONS.items()
    }
    return in_turns(ways, scale)


def _rate(location: Location, options: Mapping[str, Any], items: Items, name: str) -> float:
    app = Penstock(location.url(name))

    @app.task(name="idle")
    async def idle(number: int, text: str = "") -> None: ...

    idle.enqueue(-1)
    sender = idle.using(**options)
    rate = len(items) / seconds(lambda: sender.enqueue_many(items))
    assert app.count() == len(items) + 1
    app.close()
    return rate


HALF = (Goal(least=0.5),)

SCENARIO = Scenario(
    about="enqueue_many with each option, as a share of plain",
    figures=(
        Figure("plain", "jobs/s"),
        Figure("key", "of plain", HALF),
        Figure("keys", "of plain", HALF),
        Figure("delay", "of plain", HALF),
        Figure("tags", "of plain", HALF),
        Figure("payload", "of plain", (Goal(least=0.35),)),
        Figure("ids", "of plain", (Goal(least=0.3),)),
        Figure("unique", "of plain", (Goal(least=0.3),)),
    ),
    run=measure,
    engines=("memory", "sqlite", "postgres"),
    contenders=("penstock",),
)
