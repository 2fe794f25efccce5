"""How a PostgreSQL store is: whether it can be reached, its version, and whether its schema fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import psycopg

from penstock.clock import Clock
from penstock.core.finding import Finding, Level
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.link import Link


async def checkup(
    connect: Callable[[], Awaitable[Link]], schema: str, clock: Clock, *, thorough: bool
) -> list[Finding]:
    """See the contract."""
    try:
        link = await connect()
    except (psycopg.Error, OSError) as error:
        text = f"the server cannot be reached: {' '.join(str(error).split())}"
        step = "check the address, the password and that the server runs"
        return [Finding(check="server", level=Level.ERROR, text=text, next_step=step)]
    try:
        ((version,),) = await link.rows("SHOW server_version")
        found = await schemas.version(link, schema, "postgresql")
    finally:
        await link.close()
    facts = {"version": version, "schema": found}
    return [Finding(check="server", text=f"PostgreSQL {version}, schema {found}", facts=facts)]
