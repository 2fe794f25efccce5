"""The schema of a PostgreSQL store: how it is made, brought up to date, and told from others."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from penstock.engines.postgres.link import Link
from penstock.engines.queries import migrations
from penstock.errors import BadOption, EngineCorrupt, SchemaMismatch

DEFAULT: Final = "penstock"
_OURS: Final = re.compile(r"\bpenstock\.")
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")

DAYS_AHEAD: Final = 7
"""Days of history that are made before they come."""


def check_name(schema: str) -> str:
    """Refuse a schema name that would have to be quoted."""
    if not _PLAIN.fullmatch(schema):
        why = "give a lower case name of letters, digits and underscores, at most 41 of them"
        raise BadOption("schema", schema, why)
    return schema


@cache
def placed(sql: str, schema: str) -> str:
    """A statement for the schema that holds the store."""
    return sql if schema == DEFAULT else _OURS.sub(f"{schema}.", sql)


def newest() -> int:
    """Return the schema version that this Penstock needs."""
    return len(migrations("postgres"))


def scripts(schema: str, found: int = 0) -> list[str]:
    """What brings a store of version ``found`` up to date, one script per version."""
    steps = [
        f"{placed(script, schema)}\n"
        f"INSERT INTO {schema}.migration (version, at) VALUES ({number}, {schema}.now());"
        if number > 1
        else placed(script, schema)
        for number, script in enumerate(migrations("postgres"), 1)
    ]
    # The first script has no clock to ask yet.
    steps[0] = (
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n{steps[0]}\n"
        f"INSERT INTO {schema}.migration (version, at) "
        f"VALUES (1, extract(epoch FROM clock_timestamp()));"
    )
    return steps[found:]


async def version(link: Link, schema: str, name: str) -> int:
    """Return the schema version of a store, 0 if there is none; refuse any other tables."""
    (row,) = await link.rows(
        "SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
        (f"{schema}.migration", f"{schema}.live"),
    )
    match row:
        case (True, True):
            ((found,),) = await link.rows(
                f"SELECT coalesce(max(version), 0) FROM {schema}.migration"
            )
        case (False, False):
            found = 0
        case _:
            raise EngineCorrupt(name, f"schema {schema!r} holds tables of another program")
    if found > newest():
        raise SchemaMismatch(name, found, newest())
    return int(found)


async def migrate(link: Link, schema: str, name: str) -> int:
    """Run what is missing; return the version.

    One step after the other, each in a transaction of its own under the same lock: of any number of
    processes that call it at once, one works and the others find the work done.
    """
    while True:
        await link.script("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            await link.rows(
                "SELECT pg_advisory_xact_lock(hashtext(%s), 1)", (f"{schema}.migration",)
            )
            found = await version(link, schema, name)
            steps = scripts(schema, found)
            if steps:
                await link.script(steps[0])
            if len(steps) <= 1:
                await link.rows(placed("SELECT penstock.make_days(%s)", schema), (DAYS_AHEAD,))
        except BaseException:
            await link.script("ROLLBACK")
            raise
        await link.script("COMMIT")
        if len(steps) <= 1:
            return newest()
