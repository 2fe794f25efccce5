"""``python -m benchmarks.versions ENGINE``: which versions an environment has, as JSON."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.locations import SERVER
from benchmarks.peers import MODULES

PACKAGES = {
    "memory": ("penstock", "msgspec", "uvloop"),
    "sqlite": ("penstock", "msgspec", "uvloop", "huey"),
    "postgres": (
        *("penstock", "msgspec", "uvloop", "psycopg", "asyncpg"),
        *("pgqueuer", "procrastinate", "oban", "chancy"),
    ),
}


def versions(engine: str) -> dict[str, str]:
    """Python, the store, and the packages that are there."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"python": python, **dict(_store(engine)), **dict(_installed(engine))}


def _store(engine: str) -> Iterator[tuple[str, str]]:
    if engine == "sqlite":
        yield "sqlite", sqlite3.sqlite_version
    elif engine == "postgres":
        import psycopg

        with psycopg.connect(os.environ[SERVER]) as connection:
            yield "postgresql", str(connection.info.parameter_status("server_version"))


def _installed(engine: str) -> Iterator[tuple[str, str]]:
    for name in PACKAGES[engine]:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            pass
    if beside := os.environ.get(MODULES):
        package = Path(beside).parent / "node_modules" / "graphile-worker" / "package.json"
        yield "graphile", json.loads(package.read_text())["version"]


if __name__ == "__main__":
    print(json.dumps(versions(sys.argv[1])))
