"""What a PostgreSQL store has cost so far: log written, rows made dead, rows dead now, its size."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from benchmarks.contenders.contender import Contender

_ASK = """
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
       coalesce(sum(n_tup_upd + n_tup_del), 0),
       coalesce(sum(n_dead_tup), 0),
       pg_database_size(current_database())
  FROM pg_stat_user_tables
"""


@dataclass(frozen=True, slots=True)
class ServerStats:
    """The counters at one instant; those of rows are a second behind."""

    wal: int
    """Bytes of the whole server, where nothing else happens meanwhile."""
    killed: int
    """Rows that were updated or deleted, and so had to die."""
    dead: int
    """Dead rows that nobody has cleaned up yet."""
    size: int


def server_stats(contender: Contender) -> ServerStats:
    """Ask the server."""
    with psycopg.connect(contender.location.url(contender.name), autocommit=True) as connection:
        found = connection.execute(_ASK).fetchone()
        assert found is not None
        return ServerStats(*map(int, found))
