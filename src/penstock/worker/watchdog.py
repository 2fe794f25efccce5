"""Watches the worker's loop from another thread, and tells the parent every second that it lives.

A coroutine that blocks (``time.sleep``, a slow query without ``await``) stops every other one on
its loop, and the exchange with the store. Its jobs are safe: beats go on. But what was claimed and
has not started would wait for nothing. So when the loop has not come round for ``BLOCKED`` seconds,
this thread seizes what waits and gives it back, and says which code blocks. An attempt is seized
once: if the loop wakes up at that moment, it starts something else.

| if                                  | then                                                      |
|-------------------------------------|-----------------------------------------------------------|
| the store does not take them back   | the loop does it when it wakes up                         |
| its answer is lost                  | the loop says it again; the store calls that done         |
| the process dies                    | they had not started: the rescue does not charge them     |
| the handler holds the interpreter   | nothing runs here either: the supervisor beats, and in    |
|                                     | the end kills                                             |
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from traceback import format_stack
from typing import Final

from penstock.clock import Clock
from penstock.core.job import Verdict
from penstock.engines.engine import Engine
from penstock.engines.records import Ask
from penstock.errors import EngineError
from penstock.worker.dispatcher import WEDGED, Dispatcher, released
from penstock.worker.inflight import Attempt
from penstock.worker.log import WorkerLog
from penstock.worker.runtime import resident
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import Parent, Pulse

PULSE: Final = 1.0
"""Seconds between two looks."""

BLOCKED: Final = 5.0
"""Seconds after which a loop that does not come round is said to be blocked."""

DEEPEST: Final = 20
"""Frames of the blocking code that are logged."""


class Watchdog:
    """Made on the worker's loop; ``run`` belongs to another one."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        worker: Callable[[], str],
        settings: WorkerSettings,
        clock: Clock,
        log: WorkerLog,
        parent: Parent,
    ) -> None:
        self._dispatcher = dispatcher
        self._worker = worker
        self._settings = settings
        self._clock = clock
        self._log = log
        self._parent = parent
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        """When the loop was asked to come round; None: it has."""
        self._is_blocked = False
        self._wants_replacement = False

    async def run(self, engine: Engine) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(PULSE)
            lag = self._lag()
            self._tell(lag)
            if lag < BLOCKED:
                self._is_blocked = False
                continue
            if not self._is_blocked:
                self._is_blocked = True
                self._log.blocked(self._worker(), round(lag, 1), self._code())
            await self._give_back(engine)

    def _lag(self) -> float:
        """How long the loop has not come round; asks it to, if it has."""
        now, asked_at = self._clock.monotonic(), self._asked_at
        if asked_at is None:
            asked_at = self._asked_at = now
            self._call(self._came_round)
        return now - asked_at

    def _came_round(self) -> None:
        self._asked_at = None

    def _call(self, call: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop is closed: the worker has ended

    def _code(self) -> str:
        frame = sys._current_frames().get(self._thread)
        return "".join(format_stack(frame)[-DEEPEST:]) if frame is not None else ""

    # --- what waits ----------------------------------------------------------------------------

    async def _give_back(self, engine: Engine) -> None:
        worker = self._worker()
        seized = [attempt for attempt in self._dispatcher.waiting if attempt.seize()]
        most = engine.traits.max_batch
        for first in range(0, len(seized), most):
            attempts = seized[first : first + most]
            self._call(
                self._dispatcher.given_back, attempts, await self._settled(engine, worker, attempts)
            )
        if seized:
            self._log.warning("jobs given back", worker=worker, count=len(seized))

    async def _settled(
        self, engine: Engine, worker: str, attempts: Sequence[Attempt]
    ) -> Sequence[Verdict | None]:
        outcomes = tuple(released(attempt, WEDGED) for attempt in attempts)
        try:
            return (await engine.exchange(Ask(worker=worker, outcomes=outcomes))).verdicts
        except EngineError as error:
            self._log.unavailable("give back", error)
            return [None] * len(attempts)

    # --- the parent ----------------------------------------------------------------------------

    def _tell(self, lag: float) -> None:
        stats = self._dispatcher.stats
        memory = resident(os.getpid())
        self._parent.pulse(
            Pulse(
                worker=self._worker(),
                running=self._dispatcher.running,
                waiting=len(self._dispatcher.waiting),
                lag=lag if lag >= PULSE else 0.0,
                claimed=stats.claimed,
                succeeded=stats.succeeded,
                failed=stats.failed,
                retried=stats.retried,
                memory=memory,
            )
        )
        reason = self._reason_to_go(memory)
        if reason and not self._wants_replacement:
            self._wants_replacement = True
            self._parent.replace(reason)

    def _reason_to_go(self, memory: int | None) -> str | None:
        settings, stats = self._settings, self._dispatcher.stats
        done = stats.claimed - stats.released
        if settings.max_jobs is not None and done >= settings.max_jobs:
            return f"it had {done} jobs, of max_jobs {settings.max_jobs}"
        if settings.max_memory is not None and memory is not None and memory >= settings.max_memory:
            return f"it uses {memory >> 20} MiB, of max_memory {settings.max_memory >> 20} MiB"
        return None
