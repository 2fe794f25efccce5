"""One replica: a worker process that is kept running, its successor, and those on their way out.

A process that ends is followed by another: at once after a good run, else after a pause that
doubles. A process that is to be replaced goes on until its successor has joined, then it drains; a
successor that does not get so far changes nothing.

If a process ends here, then

| here                                    | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| before the application is loaded, and   | the supervisor gives up at once: it was started wrong |
| no process has ever joined              |                                                       |
| before it has joined                    | again after a pause; ``LIMIT`` times in a row: a      |
|                                         | crash loop, the supervisor gives up                   |
| less than ``STEADY`` after it joined    | again after a pause                                   |
| later                                   | again at once                                         |
| as a successor, before it has joined    | the current process goes on                           |
| on its way out                          | nothing follows                                       |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.worker.child.process import died
from penstock.worker.supervisor import log
from penstock.worker.supervisor.replica_process import ReplicaProcess

STEADY: Final = 1.0
"""Seconds after its join that make a process's run a good one."""
FIRST: Final = 0.5
LONGEST: Final = 30.0
"""The first and the longest pause before a process is started again, in seconds."""
LIMIT: Final = 5
"""Deaths in a row before a join that are a crash loop."""
LINGER: Final = 5.0
"""Seconds beyond all deadlines after which a process that should have ended is killed."""


class ReplicaOwner(Protocol):
    """What a replica needs of the supervisor."""

    @property
    def has_served(self) -> bool:
        """A process of some replica has joined once."""

    def start_process(self, on_message: Callable[[], None]) -> ReplicaProcess:
        """Start a process; ``OSError``: there is no room for one."""

    def clean_up(self, process: ReplicaProcess) -> None:
        """Keep the counts of a dead process, and see to its jobs."""

    def give_up(self, why: str, *, is_usage: bool) -> None:
        """Stop everything: starting again would not help."""


class Replica:
    """Keeps one worker process running. Everything happens on the supervisor's loop."""

    def __init__(
        self, owner: ReplicaOwner, clock: Clock, *, waits_for_change: bool = False
    ) -> None:
        self.current: ReplicaProcess | None = None
        self.successor: ReplicaProcess | None = None
        self.leaving: list[ReplicaProcess] = []
        self.is_finished = False
        """Its process has said that none is to follow: no job was left, or a person drained it."""
        self._owner = owner
        self._clock = clock
        self._waits_for_change = waits_for_change
        self._wake = asyncio.Event()
        self._is_over = False
        self._bad_runs = 0
        self._never_joined = 0
        self._start_at = 0.0
        self._successor_at = 0.0
        self._request: str | None = None
        """Why the supervisor wants ``_old`` replaced."""
        self._old: ReplicaProcess | None = None
        self._drain: tuple[float | None, float] = (None, inf)
        self._answer: asyncio.Future[bool] | None = None

    @property
    def processes(self) -> list[ReplicaProcess]:
        """Every process of this replica that is not known to be dead."""
        return [*filter(None, (self.current, self.successor)), *self.leaving]

    @property
    def has_joined(self) -> bool:
        """Its current process has joined."""
        return self.current is not None and self.current.joined_at is not None

    def wake(self) -> None:
        """Look at the processes: one of them may have sent a message or died."""
        self._wake.set()

    async def run(self) -> None:
        """Keep a process running until the replica is stopped and all its processes are dead."""
        while True:
            self._wake.clear()
            self._reap()
            self._promote_successor()
            if not self._is_over:
                self._start_missing()
            elif not self.processes:
                return
            await self._clock.wait(self._wake, self._pause())

    # --- what the supervisor asks ---------------------------------------------------------------

    def stop(self, seconds: float, grace: float) -> None:
        """End it: attempts may go on for so many seconds."""
        self._is_over = True
        self._answer_request(False)
        until = self._clock.monotonic() + seconds + grace + LINGER
        for process in self.processes:
            if process.loaded is None:
                process.kill()  # it has no jobs yet, and reads no message while it imports
            else:
                process.drain(seconds, until)
        self.wake()

    def kill(self) -> None:
        """End it at once."""
        self._is_over = True
        for process in self.processes:
            process.kill()
        self.wake()

    def replace(
        self, reason: str, *, drain: float | None = None, grace: float = 0.0
    ) -> asyncio.Future[bool]:
        """Let a new process take over; the result says whether it could.

        Attempts of the old one may go on for ``drain`` seconds, None: until they end.
        """
        self._answer_request(False)
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self._is_over:
            self._answer_request(False)
            return answer
        self._request, self._drain = reason, (drain, grace)
        self._start_at = self._successor_at = 0.0
        self._bad_runs = self._never_joined = 0
        if self.successor is not None:  # it may have loaded the old code
            self._dismiss(self.successor)
            self.successor = None
        if self.current is not None and self.current.loaded is None:
            self._dismiss(self.current)
            self.current = None
        self._old = self.current
        self.wake()
        return answer

    def stop_waiting(self) -> None:
        """Answer the caller of ``replace``, if one still waits, that it did not happen."""
        self._answer_request(False)

    # --- one round ------------------------------------------------------------------------------

    def _reap(self) -> None:
        now = self._clock.monotonic()
        for process in self.processes:
            if not process.poll(now):
                continue
            self._owner.clean_up(process)
            if process is self.successor:
                self.successor = None
                self._successor_failed(_last_message(process))
            elif process is self.current:
                self.current = None
                self._current_ended(process, now)
            else:
                self.leaving.remove(process)
                _log_end(process)

    def _promote_successor(self) -> None:
        successor, current = self.successor, self.current
        if successor is not None and (current is None or successor.joined_at is not None):
            self.successor = None
            self.current = successor
            if current is not None:
                self._retire(current, successor)
        if self.has_joined and self.current is not self._old:
            self._request = None
            self._answer_request(True)

    def _retire(self, old: ReplicaProcess, new: ReplicaProcess) -> None:
        drain, grace = self._drain
        until = None if drain is None else self._clock.monotonic() + drain + grace + LINGER
        old.drain(drain, until)
        self.leaving.append(old)
        log.process_replaced(old.pid, new.pid, self._request or old.replace_reason or "")
        self._drain = None, inf

    def _start_missing(self) -> None:
        now = self._clock.monotonic()
        if self.current is None:
            if self.successor is None and now >= self._start_at:
                self.current = self._started()
        elif self.successor is None and self._wants_successor() and now >= self._successor_at:
            self.successor = self._started()

    def _wants_successor(self) -> bool:
        current = self.current
        if current is None or current.is_stopping:
            return False
        return current.replace_reason is not None or self._request is not None

    def _started(self) -> ReplicaProcess | None:
        try:
            return self._owner.start_process(self.wake)
        except OSError as error:
            self._start_later(f"no process could be started: {error}")
            return None

    def _pause(self) -> float | None:
        """Seconds until the next start is due; None: nothing is due before ``wake``."""
        if self._is_over:
            return None
        now = self._clock.monotonic()
        if self.current is None:
            return max(0.0, self._start_at - now) if self._start_at < inf else None
        if self.successor is None and self._wants_successor():
            return max(0.0, self._successor_at - now)
        return None

    # --- after an end ---------------------------------------------------------------------------

    def _current_ended(self, process: ReplicaProcess, now: float) -> None:
        _log_end(process)
        if process.is_finished and process.code == 0 and not self._is_over:
            self._finish()
        elif self._is_over or self.successor is not None:
            return
        elif process.joined_at is not None and now - process.joined_at >= STEADY:
            self._bad_runs = self._never_joined = 0
            self._start_at = now
        else:
            if process.joined_at is not None:
                self._never_joined = 0
            else:
                self._never_joined += 1
                self._answer_request(False)
            self._after_bad_run(process)

    def _after_bad_run(self, process: ReplicaProcess) -> None:
        why, error = _last_message(process), process.error
        is_unloadable = error is not None and process.loaded is None
        is_usage = error is not None and error.is_usage
        if self._waits_for_change and process.joined_at is None:
            self._start_at = inf
            log.waits_for_change(why)
        elif is_unloadable and not self._owner.has_served:
            self._owner.give_up(why, is_usage=is_usage)
        elif self._never_joined >= LIMIT:
            why = f"a process ended {LIMIT} times in a row before it could work: {why}"
            self._owner.give_up(why, is_usage=is_usage)
        else:
            self._start_later(why)

    def _start_later(self, why: str) -> None:
        self._bad_runs += 1
        pause = min(LONGEST, FIRST * 2.0 ** min(self._bad_runs - 1, 30))
        self._start_at = self._successor_at = self._clock.monotonic() + pause
        log.starts_again(pause, why)

    def _successor_failed(self, why: str) -> None:
        if self._is_over:
            return
        log.not_replaced(why)
        self._answer_request(False)
        self._successor_at = self._clock.monotonic() + LONGEST
        self._request = None

    def _finish(self) -> None:
        self._is_over = self.is_finished = True
        self._answer_request(True)
        if self.successor is not None:
            self._dismiss(self.successor)
            self.successor = None

    def _dismiss(self, process: ReplicaProcess) -> None:
        """End a process that has not joined; if it has by now, its jobs are given back."""
        process.drain(0.0, self._clock.monotonic() + LINGER)
        if process.loaded is None:
            process.kill()
        self.leaving.append(process)

    def _answer_request(self, could: bool) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(could)


def _log_end(process: ReplicaProcess) -> None:
    is_expected = process.code == 0 or process.is_killed or process.error is not None
    log.process_ended(process.pid, died(process.code or 0), is_expected=is_expected)


def _last_message(process: ReplicaProcess) -> str:
    if process.error is not None:
        return process.error.message
    return f"process {process.pid} {died(process.code or 0)} and did not say why"
