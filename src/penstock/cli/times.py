"""Instants and durations as a command prints them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_STEPS: Final = ((60.0, 1.0, "s"), (3600.0, 60.0, "m"), (172800.0, 3600.0, "h"))
_LATEST: Final = 253_402_300_799.0


def iso(instant: float | None) -> str | None:
    """An instant for JSON: ``2026-11-16T03:20:11.250000Z``."""
    return None if instant is None else _utc(instant).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(instant: float | None, now: float) -> str | None:
    """An instant for people: ``2026-11-16 03:20:11 UTC (5m ago)``."""
    if instant is None:
        return None
    return f"{_utc(instant):%Y-%m-%d %H:%M:%S} UTC ({relative(instant, now)})"


def relative(instant: float | None, now: float) -> str:
    """How far away an instant is: ``5m ago``, ``in 3d``; empty if there is none."""
    if instant is None:
        return ""
    away = instant - now
    return f"in {rough(away)}" if away > 0 else f"{rough(-away)} ago"


def rough(seconds: float) -> str:
    """A duration in its largest unit: ``40ms``, ``12s``, ``5m``, ``36h``, ``3d``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for below, unit, letter in _STEPS:
        if seconds < below:
            return f"{seconds // unit:.0f}{letter}"
    return f"{seconds // 86400:.0f}d"


def _utc(instant: float) -> datetime:
    """The date, within the years that ``datetime`` has."""
    return datetime.fromtimestamp(min(max(instant, 0.0), _LATEST), UTC)
