"""Where a measurement keeps its stores: a directory for SQLite, databases of one PostgreSQL server,
or the memory of its process.

A location can be written down, so that another process finds the same stores, but for those in
memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

SERVER: Final = "BENCHMARK_SERVER"
"""The variable with the URL of the PostgreSQL server's first database."""


class Location(ABC):
    """Room for stores, each with a name."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    @classmethod
    @abstractmethod
    def new(cls) -> str:
        """Text for a location that nobody has."""

    @abstractmethod
    def url(self, name: str) -> str:
        """The URL of the store of this name; it is empty when it is asked for the first time."""

    @abstractmethod
    def settle(self, name: str) -> None:
        """Do what a store would else do soon by itself, beside what is measured."""

    @abstractmethod
    def clear(self) -> None:
        """Remove every store."""


class Directory(Location):
    """Files in a directory."""

    @classmethod
    def new(cls) -> str:
        return tempfile.mkdtemp(prefix="penstock-bench-")

    @property
    def path(self) -> Path:
        return Path(self.text)

    def url(self, name: str) -> str:
        return f"sqlite:///{self.path / name}.db"

    def settle(self, name: str) -> None:
        """Nothing: all is done within the calls."""

    def clear(self) -> None:
        shutil.rmtree(self.path)


class Memory(Location):
    """Stores of this process whose names begin alike."""

    @classmethod
    def new(cls) -> str:
        return f"bench-{uuid.uuid4().hex[:8]}"

    def url(self, name: str) -> str:
        return f"memory://{self.text}-{name}"

    def settle(self, name: str) -> None:
        """Nothing: all is done within the calls."""

    def clear(self) -> None:
        """Nothing: they end with the process."""


class Databases(Location):
    """Databases of the server whose names begin alike."""

    @classmethod
    def new(cls) -> str:
        return f"bench_{uuid.uuid4().hex[:8]}"

    def url(self, name: str) -> str:
        database = f"{self.text}_{name}"
        with _connected(os.environ[SERVER]) as server:
            known = server.execute("SELECT FROM pg_database WHERE datname = %s", [database])
            if not known.fetchall():
                server.execute(f"CREATE DATABASE {database}")
                # What came before is not paid for by who comes now.
                server.execute("CHECKPOINT")
        return urlsplit(os.environ[SERVER])._replace(path=f"/{database}").geturl()

    def settle(self, name: str) -> None:
        """Clean up, learn how many rows there are, and write everything to the disk."""
        with _connected(self.url(name)) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def clear(self) -> None:
        for database in self._databases():
            with _connected(os.environ[SERVER]) as server:
                server.execute(f"DROP DATABASE {database} WITH (FORCE)")

    def _databases(self) -> list[str]:
        known = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
        with _connected(os.environ[SERVER]) as server:
            return [name for (name,) in server.execute(known, [self.text])]


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


LOCATIONS: Final[Mapping[str, type[Location]]] = {
    "sqlite": Directory,
    "postgres": Databases,
    "memory": Memory,
}


@contextmanager
def location_for(engine: str) -> Iterator[Location]:
    """A new location, which is cleared afterwards."""
    kind = LOCATIONS[engine]
    location = kind(kind.new())
    try:
        yield location
    finally:
        location.clear()
