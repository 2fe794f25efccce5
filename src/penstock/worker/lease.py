"""The lease: a worker's right to start jobs, kept by beats from a thread of its own.

A beat proves to others that the worker lives; its answer proves to the worker that its jobs are
still its own. How long that answer is good for is counted from the moment the beat was *sent*: an
observer that saw the beat before this one may have begun to count a lease right after that moment.
So

    trusted_until = start of the last successful beat (or join) + lease - margin

and no attempt starts later than that. Attempts that run already go on: whether their worker is
dead is for others to prove, and until then their outcomes are welcome.

The beats have their own thread, loop and handle, because a handler that blocks the worker's loop
for a minute is no reason to lose a lease.

If this dies, or hangs, here

| here                         | then                                                              |
|------------------------------|-------------------------------------------------------------------|
| the process, anywhere        | its beat stands still; a leader proves the death and rescues      |
| the worker's loop            | beats go on: the jobs stay here, slow but not doubled             |
| the beat thread, or the GIL  | nothing starts after ``trusted_until``; then as if it had died    |
| the store, less than a lease | nothing can be proven: everything goes on, outcomes wait          |
| the store, longer            | the same, but nothing starts until a beat succeeds again          |
| after a rescue               | the next beat is told ``LeaseLost``: all is dropped, a new id     |
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from math import inf

from penstock.clock import Clock
from penstock.engines import orders
from penstock.engines.engine import Engine
from penstock.engines.retrying import Backoff
from penstock.errors import EngineClosed, EngineError, LeaseLost
from penstock.worker.log import WorkerLog
from penstock.worker.pool import StartGate
from penstock.worker.settings import WorkerSettings


def new_worker_id(name: str) -> str:
    """An id that no other incarnation has, and that a person can find the process by."""
    return f"{name or socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


class Lease:
    """Which id the worker has now, and until when it may trust it. Safe for threads.

    ``lost`` and ``regained`` are called on the worker's loop.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        gate: StartGate,
        clock: Clock,
        lost: Callable[[str], None],
        regained: Callable[[], None],
    ) -> None:
        self.worker = new_worker_id(settings.name)
        self._name = settings.name
        self._good_for = settings.lease - settings.margin
        self._gate = gate
        self._clock = clock
        self._lost = lost
        self._regained = regained
        self._is_joined = False
        self._beat_at = -inf
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()

    @property
    def beating(self) -> str | None:
        """The id to beat for; None: the store does not know the worker yet."""
        with self._lock:
            return self.worker if self._is_joined else None

    def beat_at(self) -> float:
        """When the last beat was sent that has reached the store, on the monotonic clock."""
        return self._beat_at

    def renew(self, worker: str, asked_at: float) -> None:
        """A beat or join of ``worker``, sent at ``asked_at``, has succeeded."""
        with self._lock:
            if worker != self.worker:
                return
            self._is_joined = True
            self._beat_at = max(self._beat_at, asked_at)
            before = self._gate.trusted_until
            self._gate.trusted_until = max(before, asked_at + self._good_for)
        # Asked after the change: what found the gate shut before is woken by this.
        if self._clock.monotonic() >= before:
            self._call(self._regained)

    def lose(self, worker: str) -> None:
        """The store does not know ``worker`` any more."""
        with self._lock:
            if worker != self.worker:
                return
            self._gate.trusted_until = 0.0
        self._call(self._lost, worker)

    def rename(self) -> None:
        """Take a new id; nothing is trusted until it has joined."""
        with self._lock:
            self.worker = new_worker_id(self._name)
            self._is_joined = False
            self._gate.trusted_until = 0.0

    def _call(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the worker's loop is closed: it has ended


async def keep_beating(
    engine: Engine,
    lease: Lease,
    every: float,
    clock: Clock,
    log: WorkerLog,
    ordered: Callable[[orders.DrainOrder], None],
) -> None:
    """Beat every fifth of a lease, under the id that the worker has at that moment. ``ordered`` is
    called with the order that each beat brings, as long as there is one.
    """
    backoff = Backoff(longest=every)
    while True:
        worker, asked_at, pause = lease.beating, clock.monotonic(), every
        try:
            if worker is not None:
                order = orders.read(await engine.beat(worker))
                lease.renew(worker, asked_at)
                if order is not None:
                    ordered(order)
        except LeaseLost as error:
            lease.lose(error.worker)
        except EngineClosed:
            raise
        except EngineError as error:
            log.unavailable("beat", error, caller="beat")
            pause = backoff.next()
        else:
            log.available("beat")
            backoff.reset()
        await clock.sleep(pause)
