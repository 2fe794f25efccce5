"""How a PostgreSQL store does at one instant: what ``glance`` counts, and what it picks out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.core.job import State
from penstock.engines.postgres.rows import Row, to_jobs
from penstock.engines.postgres.views import PostgresViews, to_count
from penstock.engines.queries import statements
from penstock.engines.records import Glance, Traffic


async def glance(views: PostgresViews, window: float, limit: int) -> Glance:
    """See the contract."""
    return await _Look(views).glance(window, max(0, limit))


class _Look:
    """One look at one snapshot."""

    def __init__(self, views: PostgresViews) -> None:
        self._views = views
        self._sql = statements("postgres/glance.sql")

    async def glance(self, window: float, limit: int) -> Glance:
        """See the contract."""
        busy: Counter[str] = Counter()
        running: Counter[str] = Counter()
        for worker, queue, jobs in await self._rows("busy"):
            busy[worker] += jobs
            running[queue] += jobs
        counts = [to_count(*row) for row in await self._rows("counts")]
        counts += [to_count(queue, State.RUNNING, None, jobs) for queue, jobs in running.items()]
        failing = [count.queue for count in counts if count.state is State.FAILED]
        now = self._views.turn.now
        return Glance(
            now=now,
            counts=tuple(counts),
            traffic=await self._traffic(now - window),
            settings=await self._views.settings(),
            workers=tuple(await self._views.workers()),
            busy=busy,
            running=tuple(to_jobs(await self._rows("running", limit=limit))),
            failed=tuple(to_jobs(await self._rows("failed", queues=failing, limit=limit))),
        )

    async def _traffic(self, since: float) -> tuple[Traffic, ...]:
        entered: Counter[str] = Counter(dict(await self._rows("entered", since=since)))
        rows = await self._rows("ended", since=since)
        ended = Counter({(queue, State(state)): jobs for queue, state, jobs in rows})
        return tuple(
            Traffic(
                queue=queue,
                entered=entered[queue],
                succeeded=ended[queue, State.SUCCEEDED],
                failed=ended[queue, State.FAILED],
                cancelled=ended[queue, State.CANCELLED],
            )
            for queue in sorted(entered.keys() | {queue for queue, _ in ended})
        )

    async def _rows(self, statement: str, **values: Any) -> list[Row]:
        return await self._views.turn.rows(self._sql[statement], values)
