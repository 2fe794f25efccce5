"""What the steps of the PostgreSQL engine share, inside one write transaction."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.core import life
from penstock.core.job import Job, State
from penstock.engines.postgres.link import Values
from penstock.engines.postgres.rows import Row, json_text, to_record
from penstock.engines.postgres.turn import Turn
from penstock.engines.postgres.views import PostgresViews
from penstock.engines.queries import statements
from penstock.errors import EngineBusy


class KeyContested(EngineBusy):
    """Whether a key is free depends on how somebody else's transaction ends."""


class PostgresSteps(PostgresViews):
    """One store inside a write transaction; what it changes, it has locked."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self.now = turn.now
        self._change_rows = turn.change
        self._steps = statements("postgres/steps.sql")

    async def _ask(self, name: str, values: Values = ()) -> list[Row]:
        return await self.turn.rows(self._steps[name], values)

    async def _change(self, name: str, values: Values = ()) -> int:
        return await self._change_rows(self._steps[name], values)

    async def _lower(self) -> None:
        """Tell claimers that a job is ready with an old ticket."""
        await self._ask("lower")

    async def _ticket(self) -> int:
        ((ticket,),) = await self._ask("ticket")
        return int(ticket)

    async def _has_lease(self, worker: str) -> bool:
        return bool(await self._ask("has_lease", (worker,)))

    async def _lock_lease(self, worker: str) -> bool:
        return bool(await self._ask("lock_lease", (worker,)))

    async def _known_tasks(self) -> frozenset[str]:
        """The tasks of all workers that have a lease."""
        return frozenset(task for worker in await self.workers() for task in worker.tasks)

    # --- how a job is written back -------------------------------------------------------------

    async def _save(self, job: Job, signed: tuple[int, str] | None = None) -> None:
        """Write a live job's next state; one that has ended moves to the history."""
        record: dict[str, Any] = to_record(job)
        if signed is not None:
            record["signed_attempt"], record["signed_by"] = signed
        name = "end" if job.state.is_final else "save"
        await self._change(name, {"job": json_text(record), "id": job.id})
        if job.state is State.READY and job.hold is None:
            await self._lower()

    async def _wait_or_end(self, job: Job, after: Job, signed: tuple[int, str] | None) -> Job:
        """Store a running job's next state, with the unique key it needs or gives back."""
        if job.unique is not None and not after.state.is_final:
            owner = await self._take_key(job.unique, job.id)
            if owner is not None:
                after = life.superseded(replace(after, state=State.RUNNING), owner, self.now)
        if job.unique is not None and after.state.is_final:
            await self._give_back(job.unique, job.id)
        await self._save(after, None if after.state.is_final else signed)
        return after

    async def _take_key(self, key: str, owner: str) -> str | None:
        """Give a free key back to a job that had it before; its window goes on.

        On failure: ``KeyContested``; the transaction is as it was before.
        """
        ((other, is_contested),) = await self._ask("keep_key", (key, owner, self.now))
        if is_contested:
            raise KeyContested("postgresql", f"an open transaction has the unique key {key!r}")
        return None if other is None else str(other)

    async def _give_back(self, key: str, owner: str) -> None:
        await self._ask("give_back", ([key], [owner], self.now))
