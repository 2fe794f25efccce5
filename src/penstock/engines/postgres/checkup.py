"""A look at a PostgreSQL store from outside: the server, and whether the store can be opened there.

Nothing is made, migrated or changed. How the server is set up is in ``vitals``, how the tables are
in ``soundness``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import psycopg

from penstock.core.finding import Finding, Level
from penstock.engines.postgres import parts, soundness, vitals
from penstock.engines.postgres import schema as schemas
from penstock.engines.postgres.link import Link
from penstock.engines.postgres.probe import Probe
from penstock.engines.postgres.troubles import line
from penstock.errors import EngineCorrupt, EngineError, SchemaMismatch

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
    connect: Callable[[], Awaitable[Link]], schema: str, listens: bool | None, *, thorough: bool
) -> list[Finding]:
    """See the contract. ``listens`` is what the URL says about it."""
    try:
        link = await connect()
    except (psycopg.Error, OSError, EngineError) as error:
        return [unreachable(error)]
    try:
        probe = Probe(link, schema)
        found = [await _server(probe)]
        if not _is_hopeless(found):
            found += await _store(probe)
        if not _is_hopeless(found):
            found += await _inside(probe, connect, listens, thorough=thorough)
        return found
    finally:
        await link.close()


def _is_hopeless(found: Iterable[Finding]) -> bool:
    return any(each.level is Level.ERROR for each in found)


async def _inside(
    probe: Probe, connect: Callable[[], Awaitable[Link]], listens: bool | None, *, thorough: bool
) -> list[Finding]:
    checks = [*vitals.CHECKS, *soundness.CHECKS, *([soundness.integrity] if thorough else [])]
    found: list[Finding] = []
    for check in checks:
        found += await probe.looked(check)
    return [*found, await vitals.listening(probe, connect, listens)]


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
    """Whether the store is there, of our version, and this role may use it."""
    newest, schema = schemas.newest(), probe.schema
    try:
        found = await schemas.version(probe.link, schema, "postgresql")
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
    if found == newest and (lacking := await parts.missing(probe)):
        return list(lacking)
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
