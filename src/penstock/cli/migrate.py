"""``penstock migrate``: bring a store's schema up to date, or print what would."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.app import Penstock
from penstock.cli.output import AsJson, print_block, print_json, print_line
from penstock.cli.prompts import say
from penstock.cli.store import Url, shared
from penstock.clock import SystemClock
from penstock.engines.records import Schema
from penstock.errors import BadOption, EngineUnavailable
from penstock.stores import connect, migration

EPILOG = """\
Every command and worker does the same when it opens a store of an older version; call this where
you want it to happen at a moment of your choice. A store that does not exist is made.

With --sql a PostgreSQL store is only looked at: the steps that it lacks are printed, for its owner
to run. All of them are if there is no server to ask.

Exit codes: 0 the schema is up to date; 1 it is not, with --check.

Example: penstock migrate --check
"""


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if something is to be done.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Change nothing; print the SQL that would be run.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Bring the schema of a store up to date."""
    with shared(url) as store:
        if sql:
            if check or as_json:
                raise BadOption("sql", True, "it prints SQL and nothing else; give it alone")
            print_block(asyncio.run(_sql(store)))
            return
        before = asyncio.run(_schema(store, check=check))
    is_done = not check or before.found == before.newest
    if as_json:
        after = before.newest if is_done else before.found
        print_json({"url": str(store.url), "from": before.found, "to": before.newest, "is": after})
    else:
        print_line(f"{store.url}: {_told(before, is_done=is_done)}.")
    if not is_done:
        raise typer.Exit(1)


async def _schema(store: Penstock, *, check: bool) -> Schema:
    """The schema as it was, before it is changed unless only a check is wanted."""
    engine = connect(store.settings.url, SystemClock())
    before = await engine.migrate(check=True)
    if not check:
        await engine.open()
        try:
            await engine.migrate()
        finally:
            await engine.close()
    return before


async def _sql(store: Penstock) -> str:
    """What would be run on the store, or on a new one if the store cannot be reached."""
    every = migration(store.url)
    try:
        found = (await connect(store.settings.url, SystemClock()).migrate(check=True)).found
    except EngineUnavailable as error:
        say(f"{error}; these are all the steps, for a store that is not there yet")
        return every
    return migration(store.url, found) or f"-- {store.url}: up to date, version {found}"


def _told(before: Schema, *, is_done: bool) -> str:
    if before.found == before.newest:
        return f"up to date, version {before.newest}"
    if before.found == 0:
        return f"{'made' if is_done else 'to be made'}, version {before.newest}"
    change = f"from version {before.found} to {before.newest}"
    return f"migrated {change}" if is_done else f"to be migrated {change}"
