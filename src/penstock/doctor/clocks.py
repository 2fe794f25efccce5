"""Checks of the clocks: all processes that write an instant into the store must agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.finding import Finding, Level
from penstock.doctor.snapshot import StoreSnapshot
from penstock.explain.reasons import span

TOLERANCE: Final = 1.0
"""Seconds that clocks may differ before jobs visibly start too early or too late."""

_STEP: Final = "synchronize the clocks of all machines with NTP (timedatectl)"


def checks(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Everything about time."""
    found = [*_server(snapshot), *_future(snapshot)]
    yield from found or [Finding(check="clock", text="the clocks agree")]


def _server(snapshot: StoreSnapshot) -> Iterator[Finding]:
    if abs(snapshot.skew) > TOLERANCE:
        way = "ahead of" if snapshot.skew > 0 else "behind"
        yield Finding(
            check="clock",
            level=Level.WARNING,
            text=f"the store's clock is {span(abs(snapshot.skew))} {way} the one here",
            next_step=_STEP,
            facts={"skew": snapshot.skew},
        )


def _future(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Something was written at an instant that is yet to come."""
    latest = 0.0
    who = ""
    if snapshot.newest is not None and snapshot.newest.enqueued_at > latest:
        latest = snapshot.newest.enqueued_at
        who = f"job {snapshot.newest.id} was enqueued"
    for worker in snapshot.workers:
        if worker.joined_at > latest:
            latest, who = worker.joined_at, f"worker {worker.id} joined"
    ahead = latest - snapshot.now
    if ahead > TOLERANCE:
        yield Finding(
            check="clock",
            level=Level.WARNING,
            text=f"{who} {span(ahead)} in the future: another machine's clock is ahead, or this "
            "machine's clock was set back",
            next_step=f"{_STEP}; until then, delays are up to {span(ahead)} too long or too short",
            facts={"skew": ahead},
        )
