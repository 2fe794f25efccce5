"""The PostgreSQL server that a reader of some pages has: found by its environment, as psql does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from docs.reading import surroundings

DATABASE: Final = "shop"
URL: Final = f"postgresql:///{DATABASE}"
"""Pages that name it begin with an empty database of that name."""


@contextmanager
def served(page: Path) -> Iterator[Mapping[str, str]]:
    """The environment in which a page can be followed."""
    if URL not in page.read_text():
        yield surroundings()
        return
    from servers.postgres import quick

    server = quick()
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
        try:
            login = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
            yield {**surroundings(), **login}
        finally:
            connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
