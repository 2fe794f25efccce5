"""A look at a PostgreSQL store from outside: the server, and whether the store can be opened there.

Nothing is made, migrated or changed. How the tables are is in ``table_checks``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import psycopg

from penstock.core.finding import Finding, Level
from penstock.core.ids import new_id
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres import table_checks
from penstock.engines.postgres.connection import ISOLATION, Connection
from penstock.engines.postgres.errors import line
from penstock.engines.postgres.probe import Probe
from penstock.errors import EngineCorrupt, EngineError, SchemaMismatch

LITTLE_ROOM: Final = 0.1
"""The part of all connections that should be left."""
PATIENCE: Final = 2.0
"""Seconds to wait for a notification."""

_LOSES: Final = {
    "fsync": "a power cut can destroy the database",
    "full_page_writes": "a power cut can destroy the database",
    "synchronous_commit": "a crash of the server loses what was enqueued or settled just before",
}


async def durability(probe: Probe) -> Sequence[Finding]:
    """What was committed has to be there after a power cut."""
    settings = await probe.settings()
    off = [name for name in _LOSES if settings[name] == "off"]
    if not off:
        return [Finding(check="durability", text="what is committed survives a power cut")]
    return [
        Finding(
            check="durability",
            level=Level.WARNING,
            text=f"{', '.join(off)} off: {_LOSES[off[0]]}",
            next_step=f"set {', '.join(off)} to on, unless every job may be lost",
            facts={name: settings[name] for name in _LOSES},
        )
    ]


async def isolation(probe: Probe) -> Sequence[Finding]:
    """Penstock has its own; a caller that enqueues in its own transaction has the default."""
    found = (await probe.settings())["default_transaction_isolation"]
    facts = {"default_transaction_isolation": found}
    if found == ISOLATION:
        return [Finding(check="isolation", text=f"isolation is {found}", facts=facts)]
    return [
        Finding(
            check="isolation",
            level=Level.NOTE,
            text=f"the default isolation is {found}: Penstock has its own, but who enqueues in a "
            "transaction of theirs may have to repeat it",
            next_step="see that such transactions are repeated on errors of class 40",
            facts=facts,
        )
    ]


async def connections(probe: Probe) -> Sequence[Finding]:
    """The next connection has to be let in."""
    found = await probe.rows("connections")
    whose, used, most = min(found, key=lambda row: row[2] - row[1])
    facts = {"used": used, "most": most}
    text = f"{used} of {most} connections of {whose} are in use"
    if most - used >= LITTLE_ROOM * most:
        return [Finding(check="connections", text=text, facts=facts)]
    step = "raise the limit, give workers fewer (?connections=), or put a pooler between"
    return [
        Finding(check="connections", level=Level.WARNING, text=text, next_step=step, facts=facts)
    ]


CHECKS: Final = (durability, isolation, connections)


async def listening(
    probe: Probe, connect: Callable[[], Awaitable[Connection]], listens: bool | None
) -> Finding:
    """Whether a notification is heard, over a connection of its own."""
    pooled = probe.connection.is_pooled
    facts = {"is_pooled": pooled}
    if listens is False:
        text = "the URL says listen=false: workers poll"
        step = "leave it out, unless a pooler is between"
        return Finding(check="wake_up", level=Level.NOTE, text=text, next_step=step, facts=facts)
    try:
        is_heard = await _is_heard(probe, connect)
    except (psycopg.Error, OSError, EngineError):
        is_heard = False
    if is_heard:
        text = "notifications are heard" + (", through a pooler" if pooled else "")
        return Finding(check="wake_up", text=text, facts=facts)
    text = f"no notification is heard within {PATIENCE:g} s: workers poll, and start jobs later"
    step = "see that nothing between here and the server cuts or filters connections"
    if pooled:
        text = f"a pooler is between, and {text}"
        step = "let workers connect directly, or in a pool with pool_mode = session"
    return Finding(check="wake_up", level=Level.WARNING, text=text, next_step=step, facts=facts)


async def _is_heard(probe: Probe, connect: Callable[[], Awaitable[Connection]]) -> bool:
    channel = f"penstock.checkup.{new_id()}"
    connection = await connect()
    try:
        async with asyncio.timeout(PATIENCE):
            async for heard in connection.listen(channel):
                if heard:
                    return True
                await probe.connection.script(f"NOTIFY \"{channel}\", 'heard'")
        return False
    except TimeoutError:
        return False
    finally:
        await connection.close()


OLDEST: Final = 140_000
"""The first version of PostgreSQL that has all we need, as it counts itself."""

_CAUSES: Final = (
    ("does not exist", "correct the URL, or make it: CREATE DATABASE, CREATE ROLE"),
    ("password", "correct the user and the password in the URL"),
    ("too many", "raise max_connections, or put a pooler such as PgBouncer between"),
    ("connection slots", "raise max_connections, or put a pooler such as PgBouncer between"),
)
_STEP: Final = "check the address, that the server runs, and that it lets this machine in"


async def checkup(
    connect: Callable[[], Awaitable[Connection]],
    schema: str,
    listens: bool | None,
    *,
    thorough: bool,
) -> list[Finding]:
    """See the contract. ``listens`` is what the URL says about it."""
    try:
        connection = await connect()
    except (psycopg.Error, OSError, EngineError) as error:
        return [unreachable(error)]
    try:
        probe = Probe(connection, schema)
        found = [await _server(probe)]
        if not _is_hopeless(found):
            found += await _store(probe)
        if not _is_hopeless(found):
            found += await _inside(probe, connect, listens, thorough=thorough)
        return found
    finally:
        await connection.close()


def _is_hopeless(found: Iterable[Finding]) -> bool:
    return any(each.level is Level.ERROR for each in found)


async def _inside(
    probe: Probe,
    connect: Callable[[], Awaitable[Connection]],
    listens: bool | None,
    *,
    thorough: bool,
) -> list[Finding]:
    checks = [*CHECKS, *table_checks.CHECKS, *([table_checks.integrity] if thorough else [])]
    found: list[Finding] = []
    for check in checks:
        found += await probe.looked(check)
    return [*found, await listening(probe, connect, listens)]


def unreachable(error: BaseException) -> Finding:
    """Nothing else can be said."""
    text = line(error)
    step = next((step for sign, step in _CAUSES if sign in text), _STEP)
    what = "does not let us in" if step is not _STEP else "cannot be reached"
    text = f"the server {what}: {text}"
    return Finding(check="store", level=Level.ERROR, text=text, next_step=step)


async def _server(probe: Probe) -> Finding:
    ((version, number, encoding, *_),) = await probe.rows("server")
    return server(version, number, encoding)


def server(version: str, number: int, encoding: str) -> Finding:
    """What is said of a server of this version, with a database of this encoding."""
    facts = {"version": version, "encoding": encoding}
    if number < OLDEST:
        text = f"PostgreSQL {version} is too old: Penstock needs 14 or newer"
        step = "upgrade the server"
    elif encoding != "UTF8":
        text = f"the database has encoding {encoding}, and jobs are UTF8"
        step = "make another one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    else:
        return Finding(check="server", text=f"PostgreSQL {version}, {encoding}", facts=facts)
    return Finding(check="server", level=Level.ERROR, text=text, next_step=step, facts=facts)


async def _store(probe: Probe) -> list[Finding]:
    newest, schema = schemas.newest(), probe.schema
    try:
        found = await schemas.version(probe.connection, schema)
        is_there = found > 0
    except EngineCorrupt as error:
        step = "correct the URL, or name another schema: ?schema=NAME"
        return [Finding(check="store", level=Level.ERROR, text=error.why, next_step=step)]
    except SchemaMismatch as error:
        found, is_there = error.found, True
    except psycopg.errors.InsufficientPrivilege as error:
        ((*_, role, _),) = await probe.rows("server")
        return [_denied(schema, [f"a right: {line(error)}"], role)]
    if not is_there:
        text = f"there is no schema {schema!r} with a store in this database"
        step = "correct the URL; penstock migrate makes a new store"
        return [Finding(check="store", level=Level.ERROR, text=text, next_step=step)]
    return [_schema(found, newest), *(await _rights(probe) if found == newest else ())]


def _schema(found: int, newest: int) -> Finding:
    facts = {"schema": found, "newest": newest}
    if found == newest:
        return Finding(check="schema", text=f"schema version {found} is up to date", facts=facts)
    if found > newest:
        text = f"the store has schema version {found}, and this Penstock knows {newest}"
        step = "upgrade Penstock here: a newer one has migrated the store"
    else:
        text = f"the store has schema version {found}, and this Penstock needs {newest}"
        step = "run penstock migrate"
    return Finding(check="schema", level=Level.ERROR, text=text, next_step=step, facts=facts)


async def _rights(probe: Probe) -> list[Finding]:
    ((*_, role, is_standby),) = await probe.rows("server")
    settings = await probe.settings()
    if is_standby or settings["default_transaction_read_only"] == "on":
        text = "the server is a standby" if is_standby else f"role {role} may only read"
        text += ", and nothing can be written"
        step = "name the primary in the URL (target_session_attrs=read-write finds it)"
        if not is_standby:
            step = f"ALTER ROLE {role} RESET default_transaction_read_only"
        return [Finding(check="permissions", level=Level.ERROR, text=text, next_step=step)]
    lacking = [what for (what,) in await probe.rows("rights")]
    if lacking:
        return [_denied(probe.schema, lacking, role)]
    ((owner, is_owner),) = await probe.rows("owner")
    facts = {"role": role, "owner": owner}
    text = f"role {role} may do all that a worker does"
    if is_owner:
        return [Finding(check="permissions", text=text, facts=facts)]
    step = f"if there are many, let a leader's role have the tables: GRANT {owner} TO {role}"
    text += f"; old jobs are deleted one by one, for the tables are {owner}'s"
    return [Finding(check="permissions", level=Level.NOTE, text=text, next_step=step, facts=facts)]


def _denied(schema: str, lacking: Iterable[str], role: str) -> Finding:
    known = list(lacking)
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    return Finding(
        check="permissions",
        level=Level.ERROR,
        text=f"role {role} lacks {', '.join(known[:5])}{more}",
        next_step=f"as the owner of the schema: SELECT {schema}.allow('{role}', 'work')",
        facts={"role": role, "lacking": len(known)},
    )
