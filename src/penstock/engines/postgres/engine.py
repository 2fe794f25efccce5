"""The PostgreSQL engine: the truth for teams, every process on one database.

One method per verb; what each does is in the file of its group: ``enqueue``, ``claim``, ``settle``,
``control``, ``reads``, ``history``. Time is the server's.

| if                                     | then                                                    |
|----------------------------------------|---------------------------------------------------------|
| the process dies before a commit       | the server rolls back; nothing happened                 |
| it dies after a commit, before the     | it happened; a repeated call says so (see the contract) |
| answer                                 |                                                         |
| the server is killed                   | what was committed is there when it is back             |
| two handles are in each other's way    | one of them is repeated, or told to come later          |
| the process forks                      | the child closes nothing: the connections are its       |
|                                        | parent's                                                |
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

from msgspec.structs import replace

from penstock.clock import Clock, SystemClock
from penstock.core.finding import Finding
from penstock.core.job import Draft, Job
from penstock.engines.engine import Engine
from penstock.engines.orders import cell_of
from penstock.engines.postgres import control, enqueue, history, reads
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.blocking import PostgresInlet
from penstock.engines.postgres.bounds import Bounds
from penstock.engines.postgres.claim import Claimer
from penstock.engines.postgres.connection import Connection, connect
from penstock.engines.postgres.enqueue import Doubt
from penstock.engines.postgres.errors import NAME, named_errors
from penstock.engines.postgres.pool import ConnectionPool
from penstock.engines.postgres.transaction import SQL, Transactions
from penstock.engines.postgres.vacuum import Vacuum
from penstock.engines.postgres.wakeup import CHANGED, OTHER, WORK, Wakeups
from penstock.engines.records import (
    Ask,
    Cell,
    CellPage,
    Count,
    Exchange,
    Filter,
    News,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Running,
    Schema,
    Sighting,
    Traits,
    WorkerInfo,
    cell_at,
)
from penstock.engines.validation import check_rewrites
from penstock.errors import EngineClosed, LeaseLost


class PostgresEngine(Engine):
    """One handle on one PostgreSQL store."""

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
        self.traits = Traits(name=NAME, max_batch=2000)
        self._dsn = dsn
        self._schema = schemas.check_name(schema)
        self._most = connections
        self._connect_timeout = connect_timeout
        self._listens = listens
        self._follows_clock = follows_clock
        self._pid = os.getpid()
        self._opening = asyncio.Lock()
        self._transactions: Transactions | None = None
        self._claimer: Claimer | None = None
        self._bounds = Bounds(self.clock)
        self._vacuum = Vacuum()
        self._doubt = Doubt(self.clock)

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._transactions is not None and self._pid == os.getpid():
                return
            self._pid = os.getpid()
            pool = ConnectionPool(
                self._connect_anew, most=self._most, patience=self._connect_timeout
            )
            try:
                with named_errors():
                    async with pool.use() as connection:
                        found = await schemas.version(connection, self._schema)
                        if found < schemas.newest():
                            await schemas.migrate(connection, self._schema)
            except BaseException:
                await pool.close()
                raise
            listen = None if self._listens is False else self._connect_listener
            wakeups = Wakeups(pool, self._schema, self.clock, self.polls, listen)
            self._bounds.forget()
            self._transactions = Transactions(pool, wakeups, self._schema, self._instant)
            self._claimer = Claimer(self._transactions, self._bounds)
            self._doubt.begin()
            self.inlet = PostgresInlet(
                self._dsn,
                self._schema,
                self._connect_timeout,
                doubt=self._doubt,
                instant=self._instant,
                abandon=pool.abandon,
            )

    async def close(self) -> None:
        async with self._opening:
            opened, self._transactions = self._transactions, None
            inlet, self.inlet = self.inlet, None
            self._claimer = None
            if opened is None or self._pid != os.getpid():
                return
            # A caller that is cancelled here has closed the rest all the same.
            async with AsyncExitStack() as parts:
                parts.push_async_callback(opened.pool.close)
                parts.push_async_callback(opened.wakeups.close)
                if inlet is not None:
                    inlet.close()

    async def migrate(self, *, check: bool = False) -> Schema:
        with named_errors():
            if check:
                connection = await self._connect()
                try:
                    found = await schemas.version(connection, self._schema)
                finally:
                    await connection.close()
            else:
                async with self._store().pool.use() as connection:
                    found = await schemas.version(connection, self._schema)
                    await schemas.migrate(connection, self._schema)
        return Schema(found=found, newest=schemas.newest())

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        """How the server and the database are; see ``stores.checkup``."""
        from penstock.engines.postgres.checkup import checkup

        return await checkup(self._connect, self._schema, self._listens, thorough=thorough)

    def _store(self) -> Transactions:
        if self._transactions is None or self._pid != os.getpid():
            raise EngineClosed(NAME)
        return self._transactions

    def _claiming(self) -> Claimer:
        if self._claimer is None or self._pid != os.getpid():
            raise EngineClosed(NAME)
        return self._claimer

    async def _connect(self) -> Connection:
        return await self._connect_as("penstock")

    async def _connect_anew(self) -> Connection:
        """Another server may answer, whose tickets are older than those we knew."""
        connection = await self._connect()
        self._bounds.renew()
        return connection

    async def _connect_listener(self) -> Connection:
        return await self._connect_as("penstock listener")

    async def _connect_as(self, name: str) -> Connection:
        return await connect(self._dsn, name, timeout=self._connect_timeout, keeps=self._listens)

    def _instant(self) -> float | None:
        return self.clock.now() if self._follows_clock else None

    # --- in ------------------------------------------------------------------------------------

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await enqueue.enqueue(self._store(), drafts, self._doubt)

    # --- work ----------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo) -> None:
        await self._store().write(WORK, control.join, worker)

    async def leave(self, worker: str) -> None:
        await self._store().write(OTHER, control.leave, worker)

    async def beat(self, worker: str) -> bytes | None:
        rows = await self._store().call(SQL["beat"], (worker, cell_of(worker)))
        if not rows:
            raise LeaseLost(worker)
        return cell_at(*rows[0]).value

    async def exchange(self, ask: Ask) -> Exchange:
        return await self._claiming().exchange(ask)

    async def held(self, worker: str) -> list[Job]:
        return await self._store().seek(reads.held, worker)

    # --- control -------------------------------------------------------------------------------

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        check_rewrites(NAME, rewrites)
        return await self._store().write(CHANGED, control.rewrite, rewrites)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._store().write(CHANGED, control.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._store().write(WORK, control.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._store().single(reads.queues)

    # --- upkeep --------------------------------------------------------------------------------

    async def promote(self, limit: int) -> Promoted:
        store = self._store()
        ((due, now),) = await store.call(SQL["next_instant"])
        if due is None or due > now:
            return Promoted(due_in=control.due_in(due, now))
        return await store.write(
            lambda done: CHANGED if done.ready or done.expired else "", control.promote, limit
        )

    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        return await self._store().write(OTHER, control.end_leases, dead)

    async def prune(self, limit: int) -> Pruned:
        store = self._store()
        pruned, whole = await store.write(OTHER, control.prune, limit)
        dropped = await history.drop_days(store, self._connect, whole) if whole else 0
        again_in = await self._vacuum.clear_if_worth_it(store, self._connect)
        return replace(pruned, jobs=pruned.jobs + dropped, again_in=again_in)

    async def repair(
        self, limit: int, cursor: str | None = None, *, rehearse: bool = False
    ) -> Repaired:
        return await self._store().write(CHANGED, control.repair, limit, cursor, rehearse=rehearse)

    # --- small values --------------------------------------------------------------------------

    async def cell(self, name: str) -> Cell:
        return await self._store().single(reads.cell, name)

    async def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None = None
    ) -> Cell | None:
        # A value with a time to live is written again and again: no call sleeps for it.
        wakes = OTHER if ttl is None else ""
        values = {"name": name, "value": value, "version": version, "ttl": ttl}
        statement = SQL["set_cell" if version else "new_cell"]
        rows = await self._store().call(statement, values, wakes=wakes)
        return cell_at(*rows[0]) if rows else None

    async def cells(self, prefix: str, cursor: str | None, limit: int) -> CellPage:
        return await self._store().single(reads.cells, prefix, cursor, limit)

    # --- see -----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._store().single(reads.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        store = self._store()
        # The leader asks for what few workers have, among any number of jobs that wait.
        read = store.seek if which.workers else store.single
        return await read(reads.find, which, cursor, limit)

    async def counts(self, which: Filter) -> list[Count]:
        return await self._store().single(reads.counts, which)

    async def running(self) -> list[Running]:
        return await self._store().single(reads.running)

    async def workers(self) -> list[WorkerInfo]:
        return await self._store().single(reads.workers)

    # --- wake ----------------------------------------------------------------------------------

    async def version(self, kind: News) -> int:
        return await self._store().wakeups.version(kind)

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        return await self._store().wakeups.listen(kind, seen, timeout)
