"""What a person may change about a job that waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from penstock.core.job import priority_number
from penstock.core.units import Duration, seconds
from penstock.errors import BadOption, UsageError
from penstock.options import instant, word


class JobEdits(TypedDict, total=False):
    """The changes; what is None or not given stays as it is."""

    queue: str | None
    priority: str | int | None
    delay: Duration | None
    """How long from now on it waits; 0: it is due."""
    run_at: datetime | float | None
    """Until when it waits: an aware datetime, or seconds since 1970."""


def read_edits(edits: JobEdits, priorities: Mapping[str, int]) -> dict[str, Any]:
    """The changes as ``changes.edit`` takes them.

    On failure: a ``UsageError`` for a value that does not fit, or if nothing is to be changed.
    """
    known = ", ".join(JobEdits.__annotations__)
    given: dict[str, Any] = {name: value for name, value in edits.items() if value is not None}
    found: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "queue":
                found[name] = word(name, value)
            case "priority":
                found[name] = priority_number(value, priorities)
            case "delay":
                found["run_in"] = seconds(value, name=name)
            case "run_at":
                found[name] = instant(name, value)
            case _:
                raise BadOption(name, value, f"a job cannot be edited so; there are {known}")
    if not found:
        raise UsageError(f"no change is given; give one or more of {known}")
    if "delay" in given and "run_at" in given:
        raise BadOption("run_at", given["run_at"], "a delay is given as well; give one of them")
    return found
