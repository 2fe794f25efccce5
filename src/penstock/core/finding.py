"""The finding: one thing that was looked at, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing is wrong."""
    WARNING = "warning"
    """Something does not go as it should, or soon will not."""
    ERROR = "error"
    """Work stands still, or may be lost."""

    @property
    def is_bad(self) -> bool:
        """It calls for something to be done."""
        return self in _BAD


_BAD: Final = frozenset({Level.WARNING, Level.ERROR})

Fact = str | int | float | bool | None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found. ``facts`` is for programs, the text for people."""

    check: str
    level: Level = Level.OK
    text: str
    next_step: str | None = None
    facts: Mapping[str, Fact] = msgspec.field(default_factory=dict)
