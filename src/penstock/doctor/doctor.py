"""Examine a store: without opening it, then its contents, before and after beats were watched."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Final

from penstock.core.finding import Finding, Level
from penstock.doctor import clocks, queues, workers
from penstock.doctor.snapshot import Expected, Reading, read, take
from penstock.engines.engine import Engine
from penstock.errors import EngineError
from penstock.stores import checkup

LOOK_EVERY: Final = 0.2
SLOW: Final = 1.0
"""Seconds that a round trip may take before it is worth a warning."""
LONGEST_WATCH: Final = 60.0

_CLOSED: Final = frozenset({"server", "store", "schema", "permissions", "lock"})
"""Checks whose errors mean that the store cannot be opened, or not without changing it."""


async def examine(
    connect: Callable[[], Engine],
    expected: Expected,
    *,
    watch: float | None = None,
    thorough: bool = False,
    repair: bool = False,
) -> tuple[Finding, ...]:
    """Look at everything; return what was found, in the order of the checks.

    Beats are watched until each worker has shown one, at most ``watch`` seconds; by default a
    little longer than the longest pause between two beats.
    """
    engine = connect()
    found = [_versions(), *await checkup(engine, thorough=thorough)]
    if any(each.check in _CLOSED and each.level is Level.ERROR for each in found):
        return (*found, _not_opened())
    try:
        await engine.open()
        try:
            found += await _inside(engine, expected, watch, repair=repair)
        finally:
            await engine.close()
    except EngineError as error:
        found.append(_unreachable(error))
    return tuple(found)


async def _inside(
    engine: Engine, expected: Expected, watch: float | None, *, repair: bool
) -> list[Finding]:
    reach = await _reach(engine)
    before = await read(engine)
    limit = _default_watch(before, expected) if watch is None else watch
    watched = await _watch(engine, before, limit)
    snapshot = await take(engine, before, watched, expected, repair=repair)
    checks: Iterable[Iterable[Finding]] = (
        clocks.checks(snapshot),
        workers.checks(snapshot),
        queues.checks(snapshot),
    )
    return [reach, *(finding for each in checks for finding in each)]


async def _reach(engine: Engine) -> Finding:
    """How long a write takes: one that changes nothing, as a leader makes it."""
    clock, began = engine.clock, engine.clock.monotonic()
    await engine.end_leases(())
    took = clock.monotonic() - began
    facts = {"round_trip": took}
    text = f"{engine.traits.name} answers in {took * 1000:.1f} ms"
    if took <= SLOW:
        return Finding(check="reach", text=text, facts=facts)
    step = "look for a process that holds the write lock for long, or a slow disk or network"
    return Finding(check="reach", level=Level.WARNING, text=text, next_step=step, facts=facts)


def _default_watch(before: Reading, expected: Expected) -> float:
    """Beats come each fifth of a lease."""
    leases = [worker.lease or expected.lease for worker in before.workers]
    return min(max(leases, default=0.0) * 0.3, LONGEST_WATCH)


async def _watch(engine: Engine, before: Reading, limit: float) -> float:
    """Wait until every worker has beaten; return how long that took."""
    clock, began, beats = engine.clock, engine.clock.monotonic(), before.beats
    while beats:
        now = {worker.id: worker.beat for worker in await engine.workers()}
        beats = {id: beat for id, beat in beats.items() if now.get(id) == beat}
        lasted = clock.monotonic() - began
        if not beats or lasted >= limit:
            return lasted
        await clock.sleep(min(LOOK_EVERY, limit - lasted))
    return 0.0


def _versions() -> Finding:
    try:
        version = metadata.version("penstock")
    except metadata.PackageNotFoundError:
        version = "(not installed)"
    python = platform.python_version()
    text = f"Penstock {version}, Python {python}"
    return Finding(check="versions", text=text, facts={"penstock": version, "python": python})


def _not_opened() -> Finding:
    return Finding(
        check="jobs",
        level=Level.NOTE,
        text="jobs and workers were not checked, because the store could not be opened",
        next_step="fix the errors above first, then run this again",
    )


def _unreachable(error: EngineError) -> Finding:
    return Finding(
        check="reach",
        level=Level.ERROR,
        text=str(error),
        next_step="fix this, then run the command again",
        facts={"error": type(error).__name__},
    )
