"""One handle on a PostgreSQL store: its life, its connections, and how a step runs on them.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the server ends in the middle of a     | it is rolled back, or it was committed: the caller gets |
| step                                   | ``EngineUnavailable`` and may ask                       |
| another step is in the way (deadlock,  | nothing was written; the step is repeated               |
| serialization)                         |                                                         |
| today has no partition of the history  | it is made, and the step is repeated                    |
| the process forks                      | the child closes nothing: the connections are its       |
|                                        | parent's                                                |
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Concatenate, Final, ParamSpec, TypeVar

import psycopg
from psycopg import errors

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding
from penstock.engines.engine import Engine
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.blocking import PostgresInlet
from penstock.engines.postgres.bounds import Bounds
from penstock.engines.postgres.connection import Link, Statement, Texts, connect
from penstock.engines.postgres.control import PostgresJobs
from penstock.engines.postgres.enqueue import Doubt
from penstock.engines.postgres.errors import REPEATED, is_missing_day, named_errors
from penstock.engines.postgres.history import IN_THE_WAY, Day, Partitions, Tidying
from penstock.engines.postgres.pool import Links
from penstock.engines.postgres.reads import PostgresViews
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed
from penstock.engines.postgres.settle import EXCHANGE_TEXTS
from penstock.engines.postgres.transaction import READ, SEEK, WRITE, Alone, turn
from penstock.engines.postgres.wakeup import Watch
from penstock.engines.records import Schema, Traits
from penstock.errors import EngineClosed

TRIES: Final = 5
"""How often a step is repeated that somebody else was in the way of."""

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


class PostgresHandle(Engine):
    """What a handle has open."""

    inlet: PostgresInlet | None = None

    def __init__(
        self,
        dsn: str,
        clock: Clock | None = None,
        *,
        schema: str = schemas.DEFAULT,
        connections: int = 4,
        connect_timeout: float = 5.0,
        listens: bool | None = None,
        follows_clock: bool = False,
    ) -> None:
        """``listens`` is false behind a pooler that gives a connection away between transactions:
        then nothing may be kept on one, and we poll; None: that is found out. With
        ``follows_clock`` the injected clock says when, instead of the server's: for tests.
        """
        self.clock = clock or SystemClock()
        self.traits = Traits(
            name="postgresql",
            max_batch=2000,
        )
        self._dsn = dsn
        self._schema = schemas.check_name(schema)
        self._most = connections
        self._connect_timeout = connect_timeout
        self._listens = listens
        self._follows_clock = follows_clock
        self._pid = os.getpid()
        self._turn = asyncio.Lock()
        self._links: Links | None = None
        self._watch: Watch | None = None
        self._bounds = Bounds(self.clock)
        self._places: dict[str, str] = {}
        self._tidying = Tidying()
        self._exchange = Statement(b"exchange", placed(EXCHANGE_TEXTS, self._schema))
        self._doubt = Doubt(self.clock)

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._turn:
            if self._links is not None and self._pid == os.getpid():
                return
            self._pid = os.getpid()
            links = Links(
                self._connect_anew,
                self.traits.name,
                most=self._most,
                patience=self._connect_timeout,
            )
            try:
                with named_errors(self.traits.name):
                    async with links.use() as link:
                        await self._check_schema(link)
            except BaseException:
                await links.close()
                raise
            self._links = links
            self._doubt.begin()
            self.inlet = PostgresInlet(
                self._dsn,
                self._schema,
                self._connect_timeout,
                doubt=self._doubt,
                instant=self._instant,
                abandon=links.abandon,
            )
            self._bounds.forget()
            self._watch = Watch(
                None if self._listens is False else self._connect_listener,
                links,
                self.traits.name,
                self._schema,
                self.clock,
                self.polls,
            )

    async def _check_schema(self, link: Link) -> None:
        found = await schemas.version(link, self._schema, self.traits.name)
        if found < schemas.newest():
            await schemas.migrate(link, self._schema, self.traits.name)

    async def close(self) -> None:
        async with self._turn:
            links, self._links = self._links, None
            watch, self._watch = self._watch, None
            inlet, self.inlet = self.inlet, None
            if self._pid != os.getpid():
                return
            # Whoever is cancelled here has closed the rest all the same.
            async with AsyncExitStack() as parts:
                if links is not None:
                    parts.push_async_callback(links.close)
                if watch is not None:
                    parts.push_async_callback(watch.close)
                if inlet is not None:
                    inlet.close()

    async def migrate(self) -> int:
        with named_errors(self.traits.name):
            async with self._opened().use() as link:
                return await schemas.migrate(link, self._schema, self.traits.name)

    async def schema(self) -> Schema:
        with named_errors(self.traits.name):
            link = await self._connect()
            try:
                found = await schemas.version(link, self._schema, self.traits.name)
            finally:
                await link.close()
        return Schema(found=found, newest=schemas.newest())

    async def now(self) -> float:
        ((now,),) = await self._call("SELECT penstock.now()", ())
        return float(now)

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        from penstock.engines.postgres.checkup import checkup

        return await checkup(self._connect, self._schema, self._listens, thorough=thorough)

    # --- connections ---------------------------------------------------------------------------

    async def _connect(self) -> Link:
        return await self._connect_as("penstock")

    async def _connect_anew(self) -> Link:
        """Another server may answer, whose tickets are older than those we knew."""
        link = await self._connect()
        self._bounds.renew()
        return link

    async def _connect_listener(self) -> Link:
        return await self._connect_as("penstock listener")

    async def _connect_as(self, name: str) -> Link:
        return await connect(self._dsn, name, timeout=self._connect_timeout, keeps=self._listens)

    def _opened(self) -> Links:
        if self._links is None or self._pid != os.getpid():
            raise EngineClosed(self.traits.name)
        return self._links

    def _watching(self) -> Watch:
        if self._watch is None or self._pid != os.getpid():
            raise EngineClosed(self.traits.name)
        return self._watch

    # --- how a step runs -----------------------------------------------------------------------

    def _instant(self) -> float | None:
        return self.clock.now() if self._follows_clock else None

    async def _call(
        self, sql: str, values: tuple[object, ...], *, wakes: str = "", fills: str = ""
    ) -> list[Row]:
        """Run one statement as a transaction of its own, in one round trip. ``fills`` is a queue
        that has new jobs by it.
        """

        async def attempt(link: Link) -> list[Row]:
            run = partial(link.rows, placed(sql, self._schema), values)
            return await link.call(run, self._instant())

        return await self._repeated(attempt, wakes, fills=fills)

    async def _run(self, statement: Statement, values: Texts, wakes: str) -> list[Row]:
        """The same for one that is run all the time."""

        async def attempt(link: Link) -> list[Row]:
            return await link.call(partial(link.run, statement, values), self._instant())

        return await self._repeated(attempt, wakes)

    async def _write(
        self,
        wakes: str,
        step: Callable[Concatenate[PostgresJobs, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step as one write transaction, then wake who sleeps for what it ``wakes``."""

        async def attempt(link: Link) -> Result:
            async with turn(link, self._schema, WRITE, self._instant()) as it:
                return await step(PostgresJobs(it), *args, **kwargs)

        return await self._repeated(attempt, wakes, (*REPEATED, errors.LockNotAvailable))

    async def _read(
        self,
        step: Callable[Concatenate[PostgresViews, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step that only reads, on one snapshot."""

        async def attempt(link: Link) -> Result:
            async with turn(link, self._schema, READ, self._instant()) as it:
                return await step(PostgresViews(it), *args, **kwargs)

        return await self._repeated(attempt, "")

    async def _seek(
        self,
        step: Callable[Concatenate[PostgresViews, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """The same for a few jobs, which are found by index."""

        async def attempt(link: Link) -> Result:
            async with turn(link, self._schema, SEEK, self._instant()) as it:
                return await step(PostgresViews(it), *args, **kwargs)

        return await self._repeated(attempt, "")

    async def _glimpse(
        self,
        step: Callable[Concatenate[PostgresViews, Rest], Awaitable[Result]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Result:
        """Run a step that is one statement and only reads, in one round trip."""

        async def attempt(link: Link) -> Result:
            alone = Alone(link, self._schema, self._instant())
            return await step(PostgresViews(alone), *args, **kwargs)

        return await self._repeated(attempt, "")

    async def _repeated(
        self,
        attempt: Callable[[Link], Awaitable[Result]],
        wakes: str,
        repeated: tuple[type[psycopg.Error], ...] = REPEATED,
        *,
        fills: str = "",
    ) -> Result:
        """Try until nobody is in the way; all that is repeated was rolled back."""
        tries = 0
        with named_errors(self.traits.name):
            while True:
                tries += 1
                async with self._opened().use() as link:
                    try:
                        result = await attempt(link)
                    except repeated:
                        if tries >= TRIES:
                            raise
                        continue
                    except psycopg.Error as error:
                        if tries >= TRIES or not is_missing_day(error):
                            raise
                    else:
                        if wakes:
                            self._watching().after_commit(link, wakes, fills)
                        return result
                    await self._make_days(link)

    async def _drop_days(self, days: Sequence[Day]) -> int:
        """Drop days of the history; return how many jobs went. Who is in the way is not waited for
        long: then the next call has to do it.
        """
        with named_errors(self.traits.name):
            link = await self._connect()
            try:
                if not link.is_pooled:
                    script = link.script
                    return await Partitions(lambda sql: script(placed(sql, self._schema))).drop(
                        days
                    )
                # Behind a pooler no two statements share a connection but inside a transaction.
                async with turn(link, self._schema, WRITE, self._instant()) as it:
                    return await Partitions(it.rows).drop_at_once(days)
            except IN_THE_WAY:
                return 0
            finally:
                await link.close()

    async def _clear_away(self, dead: int) -> bool:
        """Clear so many dead rows away; False: not through a pooler, which has no connection that
        is ours alone.
        """
        with named_errors(self.traits.name):
            link = await self._connect()
            try:
                if not link.is_pooled:
                    script = link.script
                    await self._tidying.clear(lambda sql: script(placed(sql, self._schema)), dead)
                return not link.is_pooled
            finally:
                await link.close()

    async def _make_days(self, link: Link) -> None:
        async with turn(link, self._schema, WRITE, self._instant()) as it:
            await it.rows("SELECT penstock.make_days(%s)", (schemas.DAYS_AHEAD,))
