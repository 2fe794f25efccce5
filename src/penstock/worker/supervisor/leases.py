"""What a supervisor does in the store for its processes: beat while they live, see to what they
leave when they have died.

A handler that holds the interpreter for a minute stops the beats of its own process, but not those
of the supervisor: the lease is kept. A process whose end the supervisor has seen is dead beyond
doubt, so nobody has to wait for its lease to run out:

1. what it could not settle itself, its will, is settled in its name;
2. its lease is given back;
3. what it still held is rescued, at once.

If the supervisor dies here, then

| here              | then                                                                        |
|-------------------|-----------------------------------------------------------------------------|
| before 1          | a leader rescues all of it after a lease; the will counts as a crash        |
| between 1 and 2   | a leader rescues the rest after a lease                                     |
| between 2 and 3   | the next rescue, of any leader or supervisor, finds it without a lease      |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from penstock.clock import Clock
from penstock.core.job import Outcome, Verdict
from penstock.engines.engine import Engine
from penstock.engines.records import Ask
from penstock.engines.retrying import Backoff
from penstock.errors import EngineClosed, EngineError, EngineUnavailable, LeaseLost
from penstock.worker.supervisor.log import StaffJournal
from penstock.worker.supervisor.replica_messages import Loaded
from penstock.worker.supervisor.replica_process import Member

RESCUES: Final = 500
"""Jobs that one call rescues."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Estate:
    """What a dead process has left under one name."""

    worker: str
    will: tuple[Outcome, ...] = ()


class StaffStore:
    """One handle on the store, for all processes of a supervisor. Belongs to its loop."""

    def __init__(
        self,
        connect: Callable[[str], Engine],
        living: Callable[[], Iterable[str]],
        clock: Clock,
        journal: StaffJournal,
    ) -> None:
        self._connect = connect
        self._living = living
        self._clock = clock
        self._journal = journal
        self._loaded: Loaded | None = None
        self._is_located = asyncio.Event()
        self._estates: list[Estate] = []
        self._wake = asyncio.Event()
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    def locate(self, loaded: Loaded) -> None:
        """Learn from the first process where the store is. One that only that process can reach
        ends with it: there is nothing to do then.
        """
        if self._loaded is None and loaded.url is not None:
            self._loaded = loaded
            self._is_located.set()

    def bury(self, member: Member) -> None:
        """See to what a dead process has left, in the background."""
        if self._loaded is None:
            return
        wills: dict[str, list[Outcome]] = {member.worker: []} if member.worker else {}
        for (worker, _, _), outcome in member.will.items():
            wills.setdefault(worker, []).append(outcome)
        self._estates += [Estate(worker, tuple(will)) for worker, will in wills.items()]
        if self._estates:
            self._is_settled.clear()
            self._wake.set()

    async def settled(self, timeout: float) -> bool:
        """Wait until all that dead processes have left is seen to."""
        done = await self._clock.wait(self._is_settled, timeout)
        for estate in () if done else self._estates:
            self._journal.unsettled(estate.worker, None)
        return done

    async def run(self) -> None:
        """Do it until cancelled."""
        await self._is_located.wait()
        assert self._loaded is not None
        assert self._loaded.url is not None
        engine = self._connect(self._loaded.url)
        try:
            await self._open(engine)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat(engine, self._loaded.lease / 5))
                group.create_task(self._see_to_all(engine))
        finally:
            await engine.close()

    async def _open(self, engine: Engine) -> None:
        """Open the handle, whatever is in the way: the processes can do without it for a while."""
        backoff = Backoff()
        while True:
            try:
                return await engine.open()
            except EngineError as error:
                self._journal.unavailable("open", error)
                await self._clock.sleep(backoff.next())

    # --- the living ----------------------------------------------------------------------------

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
                    self._journal.unavailable("beat", error)
                    wait = backoff.next()
                else:
                    self._journal.available()
                    backoff.reset()
            await self._clock.sleep(wait)

    # --- the dead ------------------------------------------------------------------------------

    async def _see_to_all(self, engine: Engine) -> None:
        while True:
            self._wake.clear()
            while self._estates:
                await self._see_to(engine, self._estates[0])
                del self._estates[0]
            self._is_settled.set()
            await self._wake.wait()

    async def _see_to(self, engine: Engine, estate: Estate) -> None:
        worker, rescued = estate.worker, 0
        try:
            await self._execute(engine, estate)
        except LeaseLost:
            pass  # others have taken all of it
        except EngineError as error:
            self._journal.unsettled(worker, error)
        try:
            await self._until_done("leave", lambda: engine.leave(worker))
            while found := await self._until_done("rescue", lambda: engine.rescue((), RESCUES)):
                rescued += len(found)
        except EngineError as error:
            self._journal.unsettled(worker, error)
        self._journal.settled(worker, len(estate.will), rescued)

    async def _execute(self, engine: Engine, estate: Estate) -> None:
        """Settle a will, in pieces that the store takes."""
        size, left = engine.traits.max_batch, list(estate.will)
        backoff = Backoff()
        while left:
            piece = tuple(left[:size])
            ask = Ask(worker=estate.worker, outcomes=piece)
            answer = await self._until_done("exchange", partial(engine.exchange, ask))
            later = [
                outcome
                for outcome, verdict in zip(piece, answer.verdicts, strict=True)
                if verdict is Verdict.LATER
            ]
            left[:size] = later
            if later:
                await self._clock.sleep(backoff.next())

    async def _until_done(self, verb: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Do something however long the store is away; any other error is raised."""
        backoff = Backoff()
        while True:
            try:
                done = await call()
            except EngineUnavailable as error:
                self._journal.unavailable(verb, error)
                await self._clock.sleep(backoff.next())
            else:
                self._journal.available()
                return done
