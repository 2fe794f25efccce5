"""A PostgreSQL server that belongs to the tests, with a folder and a port of its own.

    with Postgres() as server:                      # durable, as people run it
        connection = server.connect(server.new_database())
        server.kill()                               # as a power cut, but for the disk
        server.start()

``quick()`` is one per test process that forgets what it wrote when the machine fails, for all tests
that do not touch the server itself.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psycopg

from servers.programs import INITDB, POSTGRES
from servers.ward import PATIENCE, ServerTrouble, Ward, free_port

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_prepared_transactions": "5",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    # Nowhere near UTC, and not by whole hours: a day that is the server's own is found out.
    "timezone": "Pacific/Chatham",
}

FORGETFUL = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "5s"}


class Postgres:
    """One server, which tests may stop, kill and start again; its data stays until it is closed."""

    def __init__(self, *, fsync: bool = True, **settings: str) -> None:
        self.port = free_port()
        self._settings = {**SETTINGS, **({} if fsync else FORGETFUL), **settings}
        self._ward = Ward()
        self._numbers = itertools.count(1)

    @property
    def pid(self) -> int | None:
        """Of the postmaster while it runs."""
        return self._ward.pid

    def start(self) -> None:
        """Start it and wait until it answers. The first time its data are made."""
        data = self._ward.folder / "data"
        conf = self._ward.folder / "conf"
        if not conf.exists():
            self._ward.run(
                *(INITDB.must(), "-D", str(data), "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--locale=C", "--no-sync"),
            )
            self.configure()
        self._ward.start(POSTGRES.must(), "-D", str(data), "-c", f"config_file={conf}")
        self._await()

    def configure(self, **settings: str) -> None:
        """Change settings; they hold from the next start."""
        self._settings |= settings
        own = {"port": self.port, "unix_socket_directories": self._ward.folder, **self._settings}
        lines = [f"{name} = '{value}'\n" for name, value in own.items()]
        data = self._ward.folder / "data"
        self._ward.write("conf", "".join([*lines, f"data_directory = '{data}'\n"]))

    def stop(self) -> None:
        """Shut it down in good order: who is connected is cut off, what is committed is on disk."""
        self._ward.send(signal.SIGINT)
        self._ward.ended()

    def kill(self) -> None:
        """SIGKILL the server with all its processes."""
        self._ward.kill()

    def restart(self) -> None:
        """Stop it and start it again, at the same address."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it, and remove its data."""
        self._ward.close()

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """A new connection that commits each statement by itself."""
        return psycopg.connect(self.url(database), autocommit=True, **options)

    def new_database(self, options: str = "") -> str:
        """Make an empty database, with ``options`` of CREATE DATABASE; return its name."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}")
        return name

    @property
    def as_people_sort(self) -> str:
        """Options of a database whose order is not that of bytes: what needs that must say so."""
        with self.connect() as connection:
            is_able = connection.info.server_version >= 150_000
        return "LOCALE_PROVIDER icu ICU_LOCALE 'en'" if is_able else ""

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, which is removed at the end."""
        name = self.new_database()
        try:
            yield self.url(name)
        finally:
            self.drop_database(name)

    def log(self) -> str:
        """What it has said so far."""
        return self._ward.log()

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as error:
                if self._ward.has_ended():
                    raise ServerTrouble("PostgreSQL ended at once", self.log()) from error
                if time.monotonic() > deadline:
                    raise ServerTrouble("PostgreSQL does not answer", self.log()) from error
                time.sleep(0.01)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def count_now(connection: psycopg.Connection[Any]) -> None:
    """Return when the server's statistics know what this connection has done until now."""
    # Before PostgreSQL 15 another process counts, and says nothing when it has.
    is_late = connection.info.server_version < 150000
    connection.execute("SELECT pg_sleep(1)" if is_late else "SELECT pg_stat_force_next_flush()")


@functools.cache
def quick() -> Postgres:
    """The server of this process, started when it is first asked for, which no test may stop."""
    server = Postgres(fsync=False)
    atexit.register(server.close)
    server.start()
    return server
