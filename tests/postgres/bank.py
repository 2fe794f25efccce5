"""An app whose tasks write where their jobs end, for workers in processes of their own.

``BANK_DIES`` lets the process that commits kill itself right there.
"""

from __future__ import annotations

import os
import signal
import sys

import psycopg

from penstock import INJECTED, Penstock
from penstock.engines.postgres.task_connections import SyncTaskConnection

app = Penstock(os.environ["BANK_URL"], lease=1.0)


@app.task(transactional=True)
def pay(number: int, db: psycopg.Connection = INJECTED) -> int:
    """Leave a mark in the transaction, and one that no rollback takes back."""
    db.execute("INSERT INTO payment VALUES (%s)", (number,))
    with psycopg.connect(os.environ["BANK_URL"], autocommit=True) as other:
        other.execute("INSERT INTO run VALUES (%s, %s)", (number, os.getpid()))
    return number


@app.task(transactional=True, isolation="process")
def pay_apart(number: int, db: psycopg.Connection = INJECTED) -> int:
    db.execute("INSERT INTO payment VALUES (%s)", (number,))
    return os.getpid()


@app.task(transactional=True, isolation="process")
async def pay_apart_async(number: int, db: psycopg.AsyncConnection = INJECTED) -> int:
    await db.execute("INSERT INTO payment VALUES (%s)", (number,))
    return os.getpid()


class Deadly(SyncTaskConnection):
    """Kills its process before or after it commits."""

    async def commit(self) -> None:
        if os.environ["BANK_DIES"] == "after":
            await super().commit()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if "BANK_DIES" in os.environ:
        sys.modules["penstock.engines.postgres.task_transaction"].SyncTaskConnection = Deadly  # type: ignore[attr-defined]
    app.run_worker(until_empty=True)
