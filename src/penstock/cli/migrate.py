"""``penstock migrate``: bring a store's schema up to date, or print what would."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.app import Penstock
from penstock.cli.output import AsJson, print_block, print_json, print_line
from penstock.cli.prompts import say
from penstock.cli.store import AppName, Url, shared
from penstock.clock import SystemClock
from penstock.engines.records import Schema
from penstock.errors import BadOption, EngineUnavailable
from penstock.stores import connect, migration

EPILOG = """\
Every command and worker migrates a store of an older version when it opens it. Use this command to
choose the moment yourself, such as a step of your deployment. A store that does not exist is
created.

With --sql, nothing is changed: the missing steps of a PostgreSQL store are printed, for its owner
to run. If the server cannot be reached, all steps are printed.

Exit codes: 0 the schema is up to date; 1 it is not (with --check), or the store cannot be reached;
2 wrong usage.

Example: penstock migrate --check
"""


def migrate(
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; exit with 1 if the schema is out of date."),
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Change nothing; print the SQL.")] = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Create or update the schema of a store."""
    with shared(name, url) as store:
        if sql:
            if check or as_json:
                raise BadOption("sql", True, "it prints SQL only; leave out --check and --json")
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
    engine = connect(store.url.text, SystemClock())
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
        found = (await connect(store.url.text, SystemClock()).migrate(check=True)).found
    except EngineUnavailable as error:
        say(f"{error}; printing all steps, for a store that does not exist yet")
        return every
    return migration(store.url, found) or f"-- {store.url}: up to date, version {found}"


def _told(before: Schema, *, is_done: bool) -> str:
    if before.found == before.newest:
        return f"up to date, version {before.newest}"
    if before.found == 0:
        done = "created" if is_done else "does not exist yet, to be created"
        return f"{done}, version {before.newest}"
    change = f"from version {before.found} to {before.newest}"
    return f"migrated {change}" if is_done else f"out of date, to be migrated {change}"
