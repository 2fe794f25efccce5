"""The schema of an embedded store: making it, bringing it up to date, refusing what is not ours."""

from __future__ import annotations

import sqlite3
from typing import Final

from penstock.engines.sql_files import migrations
from penstock.errors import EngineCorrupt, SchemaMismatch

APPLICATION_ID: Final = 0x50454E53
"""Marks the file as a Penstock store: "PENS"."""


def newest() -> int:
    """Return the schema version that this Penstock needs."""
    return len(migrations("sqlite"))


def version(connection: sqlite3.Connection, name: str) -> int:
    """Return the schema version of a store, 0 for an empty file; refuse any other database."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if owner != APPLICATION_ID and (tables or owner or found):
        raise EngineCorrupt(name, "the file is the database of another program")
    if found > newest():
        raise SchemaMismatch(name, found, newest())
    return int(found)


def migrate(connection: sqlite3.Connection, name: str) -> int:
    """Run what is missing, inside the caller's write transaction; return the version."""
    scripts = migrations("sqlite")
    found = version(connection, name)
    for number, script in enumerate(scripts[found:], found + 1):
        for statement in _split(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    if found == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return len(scripts)


def _split(script: str) -> list[str]:
    """Cut a script into statements; ``executescript`` would commit the transaction."""
    statements: list[str] = []
    rest = ""
    for line in script.splitlines():
        rest += line + "\n"
        if sqlite3.complete_statement(rest):
            statements.append(rest)
            rest = ""
    return statements
