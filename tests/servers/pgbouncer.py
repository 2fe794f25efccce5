"""A real PgBouncer before a PostgreSQL server: it lends a connection for one transaction.

with PgBouncer(server) as pool:
    psycopg.connect(pool.url("test_1"), prepare_threshold=None)
"""

from __future__ import annotations

import signal
import time
from types import TracebackType
from typing import Self

import psycopg

from servers.postgres import Postgres
from servers.programs import PGBOUNCER
from servers.ward import PATIENCE, ServerTrouble, Ward, free_port

SETTINGS = {
    "pool_mode": "transaction",
    "listen_addr": "127.0.0.1",
    "auth_type": "trust",
    "default_pool_size": "10",
    "max_client_conn": "200",
    "ignore_startup_parameters": "extra_float_digits",
    "admin_users": "postgres",
}


class PgBouncer:
    """One pooler, which tests may stop, kill and start again."""

    def __init__(self, server: Postgres, **settings: str) -> None:
        self.port = free_port()
        self._server = server
        self._settings = {**SETTINGS, **settings}
        self._ward = Ward()

    def start(self) -> None:
        """Start it and wait until it answers; whether its server does is another matter."""
        users = self._ward.write("users", '"postgres" ""\n')
        own = {
            **self._settings,
            "listen_port": self.port,
            "unix_socket_dir": self._ward.folder,
            "auth_file": users,
        }
        lines = [f"{name} = {value}\n" for name, value in own.items()]
        target = f"[databases]\n* = host=127.0.0.1 port={self._server.port}\n"
        conf = self._ward.write("conf", f"{target}[pgbouncer]\n{''.join(lines)}")
        self._ward.start(PGBOUNCER.must(), str(conf))
        self._await()

    def stop(self) -> None:
        """Shut it down; who is connected is cut off."""
        self._ward.send(signal.SIGTERM)
        self._ward.ended()

    def kill(self) -> None:
        """SIGKILL it."""
        self._ward.kill()

    def restart(self) -> None:
        """Stop it and start it again, at the same address."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it, and remove its files."""
        self._ward.close()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def log(self) -> str:
        """What it has said so far."""
        return self._ward.log()

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                # Its own console, which is there without any server.
                psycopg.connect(self.url("pgbouncer"), autocommit=True).close()
                return
            except psycopg.OperationalError as error:
                if self._ward.has_ended():
                    raise ServerTrouble("PgBouncer ended at once", self.log()) from error
                if time.monotonic() > deadline:
                    raise ServerTrouble("PgBouncer does not answer", self.log()) from error
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
