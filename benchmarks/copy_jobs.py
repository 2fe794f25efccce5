"""Fill a store of Penstock with copies of one job: a million in seconds instead of a minute.

Ids, entries and tickets are made as the engine makes them, so that a copy cannot be told from a job
that was enqueued; all that is in the table besides is in the copies too. Nobody else may write
meanwhile.
"""

from __future__ import annotations

import sqlite3

import psycopg

_BATCH = 100_000


def copy_job(url: str, id: str, count: int) -> None:
    """Add copies of a job until there are ``count`` of it."""
    scheme, _, rest = url.partition(":///")
    if scheme == "sqlite":
        _copy_in_file(rest, id, count)
    else:
        _copy_in_database(url, id, count)


def _copy_in_file(path: str, id: str, count: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        names = [row[1] for row in connection.execute("PRAGMA table_info(job)")]
        new = {"id": "lower(hex(randomblob(10)))", "entry": "last + step", "seq": "last + step"}
        copy = f"""
            WITH RECURSIVE steps(step) AS (
              SELECT 1 UNION ALL SELECT step + 1 FROM steps WHERE step < :batch)
            INSERT INTO job ({", ".join(names)})
            SELECT {_values(names, new)} FROM steps, ticket CROSS JOIN job WHERE job.id = :id
        """
        left = count - 1
        while left > 0:
            batch = min(left, _BATCH)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(copy, {"batch": batch, "id": id})
            connection.execute("UPDATE ticket SET last = last + ?", (batch,))
            connection.execute("COMMIT")
            left -= batch
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _copy_in_database(url: str, id: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("live", "history"):
            columns = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
                " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [f"penstock.{table}"],
            )
            names = [name for (name,) in columns.fetchall()]
            new = {
                "id": "substr(md5(random()::text || step), 1, 20)",
                "entry": "seat",
                "seq": "seat",
            }
            connection.execute(
                f"INSERT INTO penstock.{table} ({', '.join(names)}) SELECT {_values(names, new)}"
                f" FROM penstock.{table} AS job CROSS JOIN"
                " (SELECT step, nextval('penstock.ticket') AS seat"
                "    FROM generate_series(1, %s) AS step) AS copies WHERE job.id = %s",
                [count - 1, id],
            )


def _values(names: list[str], new: dict[str, str]) -> str:
    return ", ".join(new.get(name, f"job.{name}") for name in names)
