"""Durations and sizes as people write them.

A duration is seconds, text such as ``"1h30m"``, or a ``timedelta``; a size is bytes, or text such
as ``"512MB"`` and ``"2GiB"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from penstock.errors import BadDuration, BadOption

Duration = float | int | str | timedelta
"""What every duration parameter takes."""

UNITS: Final[Mapping[str, float]] = MappingProxyType(
    {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
)
"""Seconds per unit, largest first, which is also the order they are written in."""

LONGEST: Final = 365_000 * 86400.0
"""A thousand years: beyond it an instant in the future has no calendar date."""

_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([^\W\d_]*)\s*")
_ORDER: Final = tuple(UNITS)


def seconds(value: Duration, *, name: str = "duration") -> float:
    """The duration in seconds; ``name`` is what the caller calls it, for the error.

    Text is one or more numbers with units, largest first, each at most once: ``"90s"``,
    ``"1h 30m"``, ``"1.5h"``, ``"250ms"``. A number without a unit, as text too, is seconds.
    """
    subject = "it" if name == "duration" else name
    match value:
        case bool():
            raise BadDuration(value, f"{subject} is a truth value, not a number")
        case int() | float():
            found = _number(value)
        case timedelta():
            found = value.total_seconds()
        case str():
            found = _parse(value, subject)
        case _:
            raise BadDuration(value, f"{subject} is of type {type(value).__name__}")
    if math.isnan(found):
        raise BadDuration(value, f"{subject} is not a number")
    if found < 0:
        raise BadDuration(value, f"{subject} is negative")
    if found > LONGEST:
        raise BadDuration(value, f"{subject} is longer than a thousand years ({text(LONGEST)})")
    return found


def text(seconds: float) -> str:
    """The duration as people write it, for messages: ``1h30m``, ``2.5s``, ``250ms``.

    Rounded to milliseconds from one second up; weeks only where nothing else is left.
    """
    if not math.isfinite(seconds):
        return f"{seconds}s"
    if seconds < 0:
        return "-" + text(-seconds)
    if seconds < 0.9995:
        tiny = _decimal(seconds * 1000, 6)
        return "0s" if tiny == "0" else f"{tiny}ms"
    left = round(seconds * 1000)
    if left % 604_800_000 == 0:
        return f"{left // 604_800_000}w"
    written = ""
    for unit in ("d", "h", "m"):
        size = round(UNITS[unit] * 1000)
        count, left = divmod(left, size)
        written += f"{count}{unit}" if count else ""
    return written + f"{_decimal(left / 1000, 3)}s" if left else written


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _parse(value: str, subject: str) -> float:
    if not value.strip():
        raise BadDuration(value, f"{subject} is empty")
    total, place, last = 0.0, 0, -1
    while place < len(value):
        part = _PART.match(value, place)
        if part is None:
            raise BadDuration(value, f"{subject} has no number at {value[place:].strip()!r}")
        number, unit = part.groups()
        if not unit:
            if last >= 0 or part.end() < len(value):
                raise BadDuration(value, f"{subject} has no unit after {number}")
            return float(number)
        if unit not in UNITS:
            raise BadDuration(
                value, f"{subject} has an unknown unit {unit!r} (known are {', '.join(UNITS)})"
            )
        rank = _ORDER.index(unit)
        if rank == last:
            raise BadDuration(value, f"{subject} has the unit {unit!r} twice")
        if rank < last:
            raise BadDuration(
                value, f"{subject} has {unit!r} after {_ORDER[last]!r}; write the largest first"
            )
        # Division keeps "250ms" at exactly 0.25; 250 * 0.001 would not always be exact.
        amount = float(number)
        total += amount / 1000 if unit == "ms" else amount * UNITS[unit]
        place, last = part.end(), rank
    return total


def _decimal(number: float, places: int) -> str:
    return f"{number:.{places}f}".rstrip("0").rstrip(".")


# --- sizes ---------------------------------------------------------------------------------------

BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "B": 1,
        **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
        **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    }
)
"""Bytes per unit; ``MB`` is a million, ``MiB`` is 1,048,576."""

_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_BY_NAME: Final = MappingProxyType({unit.lower(): factor for unit, factor in BYTES.items()})


def size(value: int | str, *, name: str) -> int:
    """The size in bytes; ``name`` is what the caller calls it, for the error.

    Text is a number with a unit in any case of letters; without one it is bytes.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _bad(name, value)
    if isinstance(value, int):
        found = value
    else:
        part = _TEXT.fullmatch(value)
        if part is None or (part[2] or "B").lower() not in _BY_NAME:
            raise _bad(name, value)
        found = int(float(part[1]) * _BY_NAME[(part[2] or "B").lower()])
    if found < 0:
        raise BadOption(name, value, "a size is not negative")
    return found


def _bad(name: str, value: object) -> BadOption:
    return BadOption(name, value, "give bytes, or text such as '512MB' or '2GiB'")
