"""How reasons and findings write instants, durations and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from shlex import quote
from typing import Final

from penstock.core.duration import text

_LATEST: Final = 253_402_300_799.0


def moment(instant: float) -> str:
    """An instant: ``2026-11-16 03:20:11 UTC``."""
    known = datetime.fromtimestamp(min(max(instant, 0.0), _LATEST), UTC)
    return f"{known:%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """A duration, in no more detail than a person wants: ``2.5s``, ``12s``, ``5m30s``, ``3d4h``."""
    for below, step in ((1.0, 0.001), (10.0, 0.1), (3600.0, 1.0), (86400.0, 60.0)):
        if seconds < below:
            return text(round(seconds / step) * step)
    return text(round(seconds / 3600.0) * 3600.0)


def number(count: int, one: str, many: str = "") -> str:
    """``1 job``, ``2 jobs``, ``12,000 jobs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names with commas, and how many more there are."""
    known = sorted(set(names))
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def argument(name: str) -> str:
    """A name in a command, so that a shell that is given a copy of it takes it for just that."""
    word = quote(name)
    if not name.isprintable():
        letters = (c if c.isprintable() and c not in "\\'" else _code(c) for c in name)
        word = f"$'{''.join(letters)}'"
    return f"-- {word}" if name.startswith("-") else word


def _code(letter: str) -> str:
    return f"\\{letter}" if letter in "\\'" else f"\\U{ord(letter):08x}"


def near(name: str, known: Sequence[str]) -> str | None:
    """What was probably meant: the same name in another module, or one that is spelt alike."""
    last = name.rpartition(".")[2].lower()
    for each in known:
        if each != name and each.rpartition(".")[2].lower() == last:
            return each
    found = get_close_matches(name, [each for each in known if each != name], 1)
    return found[0] if found else None
