"""How an attempt is made to end: first it is asked, then it is forced, and then it is stuck.

| after                       | a coroutine      | a thread               | a child process        |
|-----------------------------|------------------|------------------------|------------------------|
| its timeout or stall, the   | is cancelled     | is hit, while its      | is killed              |
| end of its lease or worker  |                  | handler runs           |                        |
| a person's cancel           | is cancelled     | sees ``ctx.cancelled`` | sees ``ctx.cancelled`` |
| ``grace`` more              | is cancelled     | is hit, if it was not  | is killed              |
|                             | even in clean-up | before                 |                        |
| ``stall_limit`` more        | is stuck: its slot stays taken, its process should be replaced     |

It has ended when it has ended, not before: until then its slot, its limits and its job are taken.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_never

from penstock.worker.alarms import ROUNDING, Alarms, Ring
from penstock.worker.attempt import Attempt, Ending
from penstock.worker.tools import Tools


class Ends:
    """Sees to it that attempts end. Belongs to the worker's loop."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._clock = tools.clock
        self._alarms = Alarms(tools.clock, self._rang)

    def run(self) -> Coroutine[Any, Any, None]:
        """Watch the time until cancelled."""
        return self._alarms.run()

    def over(self, attempt: Attempt) -> None:
        """It has ended."""
        self._alarms.take_back(attempt)

    def interrupt(self, attempt: Attempt, ending: Ending) -> None:
        is_first = attempt.ending is None
        attempt.end(ending)
        if attempt.pool is None:
            return
        attempt.pool.interrupt(attempt)
        if is_first:
            insist_at = self._clock.monotonic() + self._tools.settings.grace
            self._alarms.set(attempt, insist_at, Ring.INSIST)

    def begun(self, attempt: Attempt) -> None:
        """An attempt that is watched has started."""
        spec, now = attempt.spec, attempt.started_at
        if now is None or attempt.is_over:
            return
        if spec.timeout is not None:
            self._alarms.set(attempt, now + spec.timeout, Ring.TIMEOUT)
        if spec.stall is not None:
            self._alarms.set(attempt, now + spec.stall, Ring.STALL)

    def _rang(self, attempt: Attempt, ring: Ring) -> None:
        match ring:
            case Ring.TIMEOUT | Ring.STALL if attempt.ending is not None:
                pass  # it ends already, and has its grace
            case Ring.TIMEOUT:
                self._look_at_time(attempt)
            case Ring.STALL:
                self._look_for_life(attempt)
            case Ring.INSIST:
                if attempt.pool is not None:
                    attempt.pool.insist(attempt)
                stuck_at = self._clock.monotonic() + self._tools.settings.stall_limit
                self._alarms.set(attempt, stuck_at, Ring.STUCK)
            case Ring.STUCK:
                self._be_wedged(attempt)
            case _:
                assert_never(ring)

    def _look_at_time(self, attempt: Attempt) -> None:
        """It may have been held up when it started, or be so still."""
        now, timeout = self._clock.monotonic(), attempt.spec.timeout or 0.0
        since = now if attempt.is_held_up else (attempt.started_at or 0.0)
        if since + timeout > now + ROUNDING:
            self._alarms.set(attempt, since + timeout, Ring.TIMEOUT)
        else:
            self.interrupt(attempt, Ending.TIMEOUT)

    def _look_for_life(self, attempt: Attempt) -> None:
        stall, seen = attempt.spec.stall or 0.0, attempt.context.alive_at
        silent_until = (attempt.started_at if seen is None else seen) or 0.0
        if attempt.is_held_up:
            silent_until = self._clock.monotonic()
        if silent_until + stall > self._clock.monotonic() + ROUNDING:
            self._alarms.set(attempt, silent_until + stall, Ring.STALL)
        else:
            self.interrupt(attempt, Ending.STALL)

    def _be_wedged(self, attempt: Attempt) -> None:
        """Nothing ends this attempt: its slot is lost to this process, which should be replaced."""
        attempt.is_stuck = True
        job = attempt.job
        self._tools.journal.stuck(job.id, job.task, self._tools.overseer.settles)
        why = f"job {job.id} ({job.task}) must end and does not"
        self._tools.overseer.replace(why, is_wedged=True)
