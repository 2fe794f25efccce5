"""The schema of a PostgreSQL store: how it is made, brought up to date, and told from others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InsufficientPrivilege

from penstock.engines.postgres.connection import Connection
from penstock.engines.postgres.errors import NAME
from penstock.engines.sql_files import migrations, statements
from penstock.errors import BadOption, EngineCorrupt, EngineUnsuitable, SchemaMismatch

DEFAULT: Final = "penstock"
_OURS: Final = re.compile(r"\bpenstock\.")
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")

DAYS_AHEAD: Final = 7
"""Days of history that are made before they come."""
OLDEST: Final = 14
"""The first version of PostgreSQL that has all we need."""
SQL: Final = statements("postgres/schema.sql")


def check_name(schema: str) -> str:
    """Refuse a schema name that would have to be quoted, or is the server's."""
    if not _PLAIN.fullmatch(schema):
        why = "give a lower case name of letters, digits and underscores, at most 41 of them"
        raise BadOption("schema", schema, why)
    if schema.startswith("pg_"):
        raise BadOption("schema", schema, "names with pg_ are PostgreSQL's own; give another")
    if schema == "public":
        why = "all programs share it, and rights are given to all of it"
        raise BadOption("schema", schema, f"{why}; give the store a schema of its own")
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
    steps = []
    for number, script in enumerate(migrations("postgres"), 1):
        begin = f"CREATE SCHEMA IF NOT EXISTS {schema};\n" if number == 1 else ""
        end = "SELECT penstock.keep_rights();\n" if number == newest() else ""
        # The first script has no clock of ours to ask yet.
        clock = "extract(epoch FROM clock_timestamp())"
        note = f"INSERT INTO penstock.migration (version, at) VALUES ({number}, {clock});\n"
        steps.append(begin + placed(f"{script}\n{note}{end}", schema))
    return steps[found:]


def printed(schema: str, found: int = 0) -> str:
    """The same for a person to run, each step in a transaction of its own, under the same lock."""
    steps = scripts(schema, found)
    parts = [
        f"-- Penstock, schema {schema}: version {number}\n"
        f"BEGIN ISOLATION LEVEL READ COMMITTED;\n"
        f"SELECT pg_advisory_xact_lock(hashtext('{schema}.migration'), 1);\n"
        f"{script}COMMIT;\n"
        for number, script in enumerate(steps, found + 1)
    ]
    days = placed(f"SELECT penstock.make_days({DAYS_AHEAD});\n", schema)
    return "\n".join([*parts, days]) if parts else ""


def check_server(version: int, encoding: str) -> None:
    """Refuse a server or a database in which a store could not be what it should be."""
    if version < OLDEST * 10_000:
        why = f"the server is PostgreSQL {version // 10_000}"
        raise EngineUnsuitable(NAME, why, f"use version {OLDEST} or later")
    if encoding != "UTF8":
        why = f"the database has the encoding {encoding}"
        raise EngineUnsuitable(NAME, why, "make one with CREATE DATABASE ... ENCODING 'UTF8'")


async def version(connection: Connection, schema: str) -> int:
    """Return the schema version of a store, 0 if there is none; refuse any other tables."""
    ((server, encoding, *tables),) = await connection.rows(SQL["find_store"], (schema,))
    check_server(server, encoding)
    match tables:
        case [True, True]:
            ((found,),) = await connection.rows(placed(SQL["version"], schema))
        case [False, False] if await connection.rows(SQL["is_empty"], (schema,)) == [(True,)]:
            found = 0
        case _:
            why = f"schema {schema!r} holds tables or functions of another program"
            raise EngineCorrupt(NAME, why, "name another schema: ?schema=NAME")
    if found > newest():
        raise SchemaMismatch(NAME, found, newest())
    return int(found)


async def migrate(connection: Connection, schema: str) -> int:
    """Run what is missing; return the version.

    One step after the other, each in a transaction of its own under the same lock: of any number of
    processes that call it at once, one works and the others find the work done.

    On failure: ``SchemaMismatch`` where something is missing and this role may not add it.
    """
    while True:
        await connection.script("BEGIN ISOLATION LEVEL READ COMMITTED")
        found = newest()
        try:
            await connection.rows(SQL["lock_migration"], (f"{schema}.migration",))
            found = await version(connection, schema)
            steps = scripts(schema, found)
            if steps:
                await connection.script(steps[0])
            if len(steps) <= 1:
                await connection.rows(placed(SQL["make_days"], schema), (DAYS_AHEAD,))
        except BaseException as error:
            await connection.script("ROLLBACK")
            if found < newest() and isinstance(error, InsufficientPrivilege):
                raise SchemaMismatch(NAME, found, newest()) from error
            raise
        await connection.script("COMMIT")
        if len(steps) <= 1:
            return newest()


# --- address ------------------------------------------------------------------------------------


_ESCAPES: Final = "in a user or a password, write : / ? # @ % as %3A %2F %3F %23 %40 %25"


def check_address(location: str, shown: str, ours: Sequence[str]) -> None:
    """Refuse a URL that the driver cannot read, or reads as something that was not meant; ``ours``
    are the options that it may have beside libpq's.

    libpq quotes what it could not read, and takes a piece of a password that was not escaped for a
    port or a host: so none of its words are passed on, only names of options.
    """
    try:
        found = conninfo_to_dict(location)
    except psycopg.ProgrammingError as error:
        what, _, name = str(error).strip().partition(': "')
        why = f"it cannot be read ({what}); {_ESCAPES}"
        if "query parameter" in what:
            option = name.rstrip('"')
            why = f"{what} {option!r}; a URL may have {', '.join(ours)}, and the options of libpq"
        raise BadOption("url", shown, why) from None
    ports = str(found.get("port", "")).split(",")
    if not all(port.isdigit() for port in ports if port):
        raise BadOption("url", shown, f"its port is no number; {_ESCAPES}")
    if "@" in str(found.get("host", "")):
        raise BadOption("url", shown, f"its host has an '@'; {_ESCAPES}")
