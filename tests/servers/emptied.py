"""One PostgreSQL store per test process, emptied for each test: cheaper than a new one."""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path

from servers.postgres import quick

BACKSTOP = 10.0
"""Real seconds after which a connection counts as left open; a server hears of an end late."""


class Emptied:
    """A database with nothing in it whenever a test begins."""

    def __init__(self) -> None:
        server = quick()
        name = server.new_database(server.as_people_sort)
        self.url = server.url(name)
        self._connection = server.connect(name)
        self._empty, self._connections = (
            Path(__file__).with_name(name).read_text() for name in ("empty.sql", "connections.sql")
        )

    def empty(self) -> None:
        """Remove what the last test left; the store's tables stay, if it has any yet."""
        self._connection.execute(self._empty)

    def left_open(self, patience: float = BACKSTOP) -> list[str]:
        """The connections of handles that do not end."""
        deadline = time.monotonic() + patience
        while found := self._connection.execute(self._connections).fetchall():
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        return [f"connection {description}" for (description,) in found]

    def close(self) -> None:
        self._connection.close()


@functools.cache
def emptied() -> Emptied:
    """The one of this process."""
    database = Emptied()
    atexit.register(database.close)
    return database
