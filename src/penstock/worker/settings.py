"""How one worker works: its queues, its slots, its patience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from penstock.core.job import CRASH_LIMIT
from penstock.errors import BadOption

LEASE: Final = 15.0
"""Seconds without a beat after which a worker's jobs go to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What is decided before a worker starts. All durations are seconds.

    Every worker of one store should have the same ``lease``: the leader measures the others by its
    own.
    """

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 100
    """Async attempts at once."""
    threads: int = 8
    """Sync attempts at once."""
    children: int = 4
    """Attempts in child processes at once: those of tasks with ``isolation="process"``; and, apart
    from these, as many of jobs that were in a crash."""
    reserve: Mapping[int, int] = field(default_factory=dict)
    """Slots of each kind that are kept for jobs at least as urgent as a priority's number; at least
    one of each kind stays for all."""
    prefetch: int = 1000
    """Jobs beyond the free slots that may wait in it, at most; long jobs mean none."""
    keyed_prefetch: int = 50
    """The same where the keys of a queue take turns."""
    patience: float = 1.0
    """How long a claimed job may wait for a slot before it is given back."""
    lease: float = LEASE
    drain: float = 30.0
    """How long running attempts may go on after ``stop``."""
    grace: float = 5.0
    """How long, after that, cancelled attempts may unwind and the store may be away."""
    stall_limit: float = 30.0
    """How long an attempt that must end may go on before its process counts as wedged."""
    max_jobs: int | None = None
    """Jobs after which the process asks to be replaced."""
    max_memory: int | None = None
    """Bytes of memory at which it does."""
    poll: float = 1.0
    """How long an idle worker sleeps between two looks at the store, and up to a tenth more."""
    keep_finished: float = 7 * 86400.0
    leader_ttl: float = 10.0
    """How long it leads without a renewal, if it leads; at most two thirds of the lease."""
    upkeep_every: float = 60.0
    """How long it waits between two rounds of pruning and repairing at most, if it leads."""
    upkeep_batch: int = 200
    """Jobs of one step of its upkeep, and that one of its claims promotes."""
    crash_limit: int = CRASH_LIMIT
    """Crashes after which a job fails for good."""
    leads: bool = True
    """It stands for election as the leader."""
    name: str = ""
    """Begins the worker's id, and in logs its name; the host's name if empty."""

    def __post_init__(self) -> None:
        if not self.queues or not all(self.queues):
            raise BadOption("queues", self.queues, "name at least one queue")
        if len(set(self.queues)) < len(self.queues):
            raise BadOption("queues", self.queues, "name each queue once")
        _check("concurrency", self.concurrency, least=1)
        _check("threads", self.threads, least=1)
        _check("children", self.children, least=1)
        _check("prefetch", self.prefetch, least=0)
        _check("keyed_prefetch", self.keyed_prefetch, least=0)
        _check("lease", self.lease, least=0.1)
        _check("poll", self.poll, least=0.001)
        _check("leader_ttl", self.leader_ttl, least=0.1)
        _check("upkeep_every", self.upkeep_every, least=0.1)
        _check("upkeep_batch", self.upkeep_batch, least=1)
        _check("crash_limit", self.crash_limit, least=1)
        for name in ("patience", "drain", "grace", "stall_limit", "keep_finished"):
            _check(name, getattr(self, name), least=0)
        for name in ("max_jobs", "max_memory"):
            if (value := getattr(self, name)) is not None:
                _check(name, value, least=1)
        for slots in self.reserve.values():
            _check("reserve", slots, least=1)

    @property
    def beat_every(self) -> float:
        """Seconds between two beats."""
        return self.lease / 5

    @property
    def margin(self) -> float:
        """How long before its lease could end a worker stops to trust it."""
        return self.lease / 5


def _check(name: str, value: float, *, least: float) -> None:
    if not least <= value < inf:
        raise BadOption(name, value, f"give a number from {least:g} up")
