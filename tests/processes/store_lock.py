"""How a test locks a store against writers, after those that write have ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg

from penstock.clock import Clock
from penstock.engines.sqlite.write_lock import WriteLock
from penstock.errors import EngineBusy
from penstock.stores import parse

LOCK = (
    "SET lock_timeout = '{timeout:.0f}ms';"
    "LOCK TABLE penstock.live, penstock.worker, penstock.ledger, penstock.cell IN EXCLUSIVE MODE"
)


def shut(url: str, clock: Clock, timeout: float) -> AbstractContextManager[None]:
    """Keep all processes from writing; ``EngineBusy`` if another one writes for so long."""
    store = parse(url)
    return (
        _file(store.location, clock, timeout) if store.scheme == "sqlite" else _server(url, timeout)
    )


@contextmanager
def _file(path: str, clock: Clock, timeout: float) -> Iterator[None]:
    gate = WriteLock(path, "test", clock)
    try:
        with gate.writing(timeout):
            yield
    finally:
        gate.close()


@contextmanager
def _server(url: str, timeout: float) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        try:
            connection.execute(LOCK.format(timeout=timeout * 1000).encode())
        except psycopg.errors.LockNotAvailable as error:
            raise EngineBusy("the store", "somebody writes") from error
        yield
        connection.rollback()
