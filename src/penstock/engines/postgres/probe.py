"""The probe: one connection that a checkup asks, statement by statement, and never changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import psycopg

from penstock.core.finding import Finding, Level
from penstock.engines.postgres.connection import Connection, Values
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import placed
from penstock.engines.sql_files import statements


class Probe:
    """Asks what ``sql/postgres/checkup.sql`` has."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self.schema = schema
        self._sql = statements("postgres/checkup.sql")

    async def rows(self, name: str, values: Values = (), **words: str) -> list[Row]:
        """Run one statement, with ``words`` put in; return what it returns."""
        sql = self._sql[name].format(**words) if words else self._sql[name]
        return await self.connection.rows(placed(sql, self.schema), values)

    async def settings(self) -> dict[str, str]:
        """How the server is set up for every new connection of this role."""
        found: dict[str, str] = dict(await self.rows("settings"))
        return found

    async def script(self, *names: str) -> list[Row]:
        """Run statements one after the other; return what the last one returns."""
        return await self.connection.script(
            placed("; ".join(self._sql[each] for each in names), self.schema)
        )

    async def looked(
        self, check: Callable[[Probe], Awaitable[Sequence[Finding]]]
    ) -> Sequence[Finding]:
        """What a check finds; one that the server refuses to answer is a finding, too."""
        try:
            return await check(self)
        except psycopg.errors.InsufficientPrivilege as error:
            return [
                Finding(
                    check=check.__name__,
                    level=Level.NOTE,
                    text=f"this role may not look: {' '.join(str(error).split())}",
                    next_step="ask again as the owner of the schema",
                )
            ]
