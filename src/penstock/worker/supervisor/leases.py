"""The leases of a supervisor's processes: beat while they live, clean up after they have died.

A handler that holds the interpreter for a minute stops the beats of its own process, but not those
of the supervisor: the lease is kept. A process whose exit the supervisor has seen is dead beyond
doubt, so its jobs need not wait until its lease runs out:

1. the outcomes that it could not settle itself are settled in its name;
2. its lease is given back;
3. the jobs that it still held are rescued, at once.

If the supervisor dies here, then

| here              | then                                                                        |
|-------------------|-----------------------------------------------------------------------------|
| before 1          | a leader rescues all of it after a lease; its outcomes count as crashes     |
| between 1 and 2   | a leader rescues the rest after a lease                                     |
| between 2 and 3   | the next rescue, of any leader or supervisor, finds it without a lease      |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.clock import Clock
from penstock.core.job import Outcome, Verdict
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.records import Ask
from penstock.engines.retrying import Backoff
from penstock.errors import EngineClosed, EngineError, EngineUnavailable, LeaseLost
from penstock.worker.supervisor import log
from penstock.worker.supervisor.replica_messages import Loaded
from penstock.worker.supervisor.replica_process import ReplicaProcess

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker name of a dead process, and the outcomes that it left to be settled."""

    worker: str
    outcomes: tuple[Outcome, ...] = ()


class ReplicaLeases:
    """One handle on the store, for all processes of a supervisor. Belongs to its loop."""

    def __init__(
        self, connect: Callable[[str], Engine], living: Callable[[], Iterable[str]], clock: Clock
    ) -> None:
        self._connect = connect
        self._living = living
        self._clock = clock
        self._loaded: Loaded | None = None
        self._is_located = asyncio.Event()
        self._dead: list[DeadWorker] = []
        self._wake = asyncio.Event()
        self._is_clean = asyncio.Event()
        self._is_clean.set()
        self._is_away = False

    def locate(self, loaded: Loaded) -> None:
        """Learn from the first process where the store is.

        A store that only that process can reach ends with it: then there is nothing to do.
        """
        if self._loaded is None and loaded.url is not None:
            self._loaded = loaded
            self._is_located.set()

    def clean_up(self, process: ReplicaProcess) -> None:
        """Settle, leave and rescue for a dead process, in the background."""
        if self._loaded is None:
            return
        left: dict[str, list[Outcome]] = {process.worker: []} if process.worker else {}
        for (worker, _, _), outcome in process.left_outcomes.items():
            left.setdefault(worker, []).append(outcome)
        self._dead += [DeadWorker(worker, tuple(outcomes)) for worker, outcomes in left.items()]
        if self._dead:
            self._is_clean.clear()
            self._wake.set()

    async def cleaned_up(self, timeout: float) -> bool:
        """Wait until that is done for every dead process; False: it took longer."""
        done = await self._clock.wait(self._is_clean, timeout)
        for dead in () if done else self._dead:
            log.left_to_leader(dead.worker, "the store is away")
        return done

    async def run(self) -> None:
        """Beat and clean up until cancelled."""
        await self._is_located.wait()
        assert self._loaded is not None
        assert self._loaded.url is not None
        engine = self._connect(self._loaded.url)
        try:
            await self._open(engine)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat(engine, self._loaded.lease / 5))
                group.create_task(self._clean_up_all(engine))
        finally:
            await engine.close()

    async def _open(self, engine: Engine) -> None:
        """Try until the handle is open: the processes can do without it for a while."""
        backoff = Backoff()
        while True:
            try:
                return await engine.open()
            except EngineError as error:
                self._note_unavailable("open", error)
                await self._clock.sleep(backoff.next())

    async def _beat(self, engine: Engine, every: float) -> None:
        backoff = Backoff(longest=every)
        while True:
            wait = every
            for worker in self._living():
                try:
                    await engine.beat(worker)
                except LeaseLost:
                    pass  # the process learns it by its own beat, and takes a new name
                except EngineClosed:
                    raise
                except EngineError as error:
                    self._note_unavailable("beat", error)
                    wait = backoff.next()
                else:
                    self._note_available()
                    backoff.reset()
            await self._clock.sleep(wait)

    async def _clean_up_all(self, engine: Engine) -> None:
        while True:
            self._wake.clear()
            while self._dead:
                await self._clean_up_one(engine, self._dead[0])
                del self._dead[0]
            self._is_clean.set()
            await self._wake.wait()

    async def _clean_up_one(self, engine: Engine, dead: DeadWorker) -> None:
        worker, rescued = dead.worker, 0
        try:
            await self._settle(engine, dead)
        except LeaseLost:
            pass  # others have taken all of it
        except EngineError as error:
            log.left_to_leader(worker, error)
        try:
            await self._until_done("leave", lambda: engine.leave(worker))
            assert self._loaded is not None
            limits = self._loaded.upkeep_batch, self._loaded.crash_limit
            rescue = partial(changes.rescue, engine, (), *limits)
            while found := await self._until_done("rescue", rescue):
                rescued += len(found)
                log.rescued(found)
        except EngineError as error:
            log.left_to_leader(worker, error)
        log.cleaned_up(worker, len(dead.outcomes), rescued)

    async def _settle(self, engine: Engine, dead: DeadWorker) -> None:
        size, left = engine.traits.max_batch, list(dead.outcomes)
        backoff = Backoff()
        while left:
            batch = tuple(left[:size])
            ask = Ask(worker=dead.worker, outcomes=batch)
            answer = await self._until_done("exchange", partial(engine.exchange, ask))
            later = [
                outcome
                for outcome, verdict in zip(batch, answer.verdicts, strict=True)
                if verdict is Verdict.LATER
            ]
            left[:size] = later
            if later:
                await self._clock.sleep(backoff.next())

    async def _until_done(self, verb: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call however long the store is away; any other error is raised."""
        backoff = Backoff()
        while True:
            try:
                done = await call()
            except EngineUnavailable as error:
                self._note_unavailable(verb, error)
                await self._clock.sleep(backoff.next())
            else:
                self._note_available()
                return done

    def _note_unavailable(self, verb: str, error: Exception) -> None:
        log.store_unavailable(verb, error, is_news=not self._is_away)
        self._is_away = True

    def _note_available(self) -> None:
        if self._is_away:
            self._is_away = False
            log.store_available()
