"""Fair queues order keys, not jobs: start-time fair queueing over the lines of the keys.

In a fair queue each (priority, key) is a *key line*, and a key line has a *place*. A claim takes
the next job of the active key line with the least place and moves that line on by its stride, which
is smaller for keys with a greater weight. A key line that becomes active enters at its own place,
but not before half a stride after the *virtual time*, the least place of an active line of its
priority: a key that was idle starts level with the others, it does not get its idle time back.
Without the half stride a stream of new keys, each served at once, would keep the virtual time
where it is, and pass a key that waits for ever. Of lines with the same place, the one whose first
job came first is next.

A key line is active while it has a job that could start and its key may run one more. Steps that
may change that leave a *note*; the next claim of the queue looks at the lines that have notes.
Places are integers, so that every engine counts alike.
"""

from __future__ import annotations

from typing import Final

STRIDE: Final = 100_000
"""How far a key line of weight 1 moves on with each job. 2^53 places last for 9 * 10^10 jobs."""

LEAST_WEIGHT: Final = 0.01
GREATEST_WEIGHT: Final = 100.0


def stride(weight: float) -> int:
    """How far a key line moves on with each job."""
    return round(STRIDE / weight)


def virtual_time(least: int | None, greatest: int) -> int:
    """Where a line that becomes active enters at the earliest: ``least`` is the place of the first
    active line of its priority, ``greatest`` the greatest place of any.

    While none is active the greatest counts, so that a key that was served a lot waits no longer
    than one that comes for the first time.
    """
    return greatest if least is None else least


def entry(own: int, virtual_time: int, stride: int) -> int:
    """The place of a key line that becomes active."""
    return max(own, virtual_time + stride // 2)
