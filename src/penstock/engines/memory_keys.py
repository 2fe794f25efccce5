"""Unique keys in memory: who has one, and until when (law 13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    """While ``held`` by its owner's life, and until its window ends, the key is taken."""

    owner: str
    until: float
    held: bool


class MemoryKeys:
    """All unique keys of one store."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def taken(self, key: str, by: str, now: float) -> str | None:
        """The job that keeps ``by`` from this key, if any."""
        entry = self._entries.get(key)
        if entry is None or entry.owner == by:
            return None
        return entry.owner if entry.held or entry.until > now else None

    def take(self, key: str, owner: str, until: float) -> None:
        """Give a free key to a job, with a window that ends at ``until``."""
        self._entries[key] = _Entry(owner, until, True)

    def hold(self, key: str, owner: str, now: float) -> None:
        """Give a free key back to a job that had it before; its window goes on."""
        entry = self._entries.get(key)
        until = entry.until if entry is not None and entry.owner == owner else now
        self.take(key, owner, until)

    def give_back(self, key: str | None, owner: str, now: float) -> None:
        """The job's life needs the key no longer; its window may."""
        entry = self._entries.get(key) if key is not None else None
        if key is not None and entry is not None and entry.owner == owner:
            entry.held = False
            if entry.until <= now:
                del self._entries[key]

    def held(self) -> Iterator[tuple[str, str]]:
        """Every key that a job's life holds, with its owner."""
        return ((key, entry.owner) for key, entry in self._entries.items() if entry.held)

    def prune(self, limit: int, now: float) -> int:
        """Forget keys that nothing holds any more."""
        free = [
            key for key, entry in self._entries.items() if not entry.held and entry.until <= now
        ][:limit]
        for key in free:
            del self._entries[key]
        return len(free)
