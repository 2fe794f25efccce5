"""Connections that break before and after a commit: what was asked happens once, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest

from conformance.steps import claim, draft, ids
from penstock import Penstock
from penstock.engines.engine import Engine
from penstock.engines.observed import Observed
from penstock.engines.postgres.engine import PostgresEngine
from penstock.errors import EngineUnavailable
from penstock.events import Bus
from penstock.testing.clock import FakeClock
from postgres.callers import put_blocking
from postgres.deeds import DEEDS, Deed
from servers.emptied import emptied
from servers.messages import runs
from servers.postgres import quick
from servers.proxy import Fault, Proxy

TABLES = (
    *("live", "history", "ledger", "unique_key", "queue"),
    *("key_line", "note", "worker", "cell"),
)

Cut = Callable[..., Fault]

WEEK = 7 * 86400.0

each_deed = pytest.mark.parametrize("kind", DEEDS, ids=lambda kind: kind.__name__)
each_cut = pytest.mark.parametrize("cut", [Proxy.cut_before, Proxy.cut_after])


@pytest.fixture
def url() -> str:
    database = emptied()
    database.empty()
    return database.url


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(quick().port) as proxy:
        yield proxy


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Engine]:
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
async def direct(url: str, clock: FakeClock) -> AsyncIterator[Engine]:
    """A handle whose connections hold. It has made the day on which jobs end: whoever misses it
    would say something first that is not the deed.
    """
    async with opened(PostgresEngine(url, clock, follows_clock=True)) as engine:
        await engine.prune(1)
        yield engine


@pytest.fixture
async def frail(url: str, clock: FakeClock, proxy: Proxy) -> AsyncIterator[Engine]:
    """A handle whose connections break."""
    async with opened(PostgresEngine(proxy.url(url), clock, follows_clock=True)) as engine:
        yield engine


def image(url: str) -> dict[str, Any]:
    """All that the store has."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        return {
            table: connection.execute(
                f"SELECT t::text FROM penstock.{table} t ORDER BY 1".encode()
            ).fetchall()
            for table in TABLES
        }


@each_deed
@each_cut
async def test_a_deed_that_is_cut_off_happened_or_did_not_and_ends_right_when_done_again(
    kind: type[Deed],
    cut: Cut,
    url: str,
    clock: FakeClock,
    proxy: Proxy,
    direct: Engine,
    frail: PostgresEngine,
) -> None:
    deed = kind()
    await deed.prepare(direct, clock)
    before = image(url)
    fault = cut(proxy, deed.commits)
    with pytest.raises(EngineUnavailable):
        await deed.act(frail)
    assert fault.has_happened
    assert (image(url) == before) is (cut is Proxy.cut_before)
    await deed.again(frail)
    await deed.check(direct)


@each_deed
@each_cut
async def test_whoever_is_patient_does_not_even_notice_unless_they_have_to_look(
    kind: type[Deed], cut: Cut, url: str, clock: FakeClock, proxy: Proxy, direct: Engine
) -> None:
    """``Observed`` repeats what may be repeated, and nothing else."""
    deed = kind()
    await deed.prepare(direct, clock)
    inner = PostgresEngine(proxy.url(url), clock, follows_clock=True)
    async with opened(Observed(inner, Bus(), backoff=0.0)) as patient:
        fault = cut(proxy, deed.commits)
        if deed.is_repeated:
            await deed.act(patient)
        else:
            with pytest.raises(EngineUnavailable):
                await deed.act(patient)
            await deed.again(patient)
        assert fault.has_happened
        await deed.check(direct)


@each_cut
async def test_a_job_that_a_thread_stores_by_itself_is_stored_once_though_it_is_cut_off(
    cut: Cut, proxy: Proxy, direct: Engine, frail: PostgresEngine
) -> None:
    """A caller that could not goes on to ``enqueue``, with the same id."""
    first = await put_blocking(frail, [draft("a")])
    assert first is not None
    fault = cut(proxy, runs("penstock.put("))
    assert await put_blocking(frail, [draft("b")]) is None
    assert fault.has_happened
    (receipt,) = await frail.enqueue([draft("b")])
    assert receipt.created is (cut is Proxy.cut_before)
    assert ids(await claim(direct, want=10)) == ["a", "b"]


@each_cut
async def test_jobs_that_a_thread_stores_with_one_call_are_stored_once_though_it_is_cut_off(
    cut: Cut, proxy: Proxy, direct: Engine, frail: PostgresEngine
) -> None:
    assert await put_blocking(frail, [draft("a")]) is not None
    fault = cut(proxy, runs("penstock.put("))
    some = [draft("b"), draft("c")]
    assert await put_blocking(frail, some) is None
    assert fault.has_happened
    receipts = await frail.enqueue(some)
    assert {receipt.created for receipt in receipts} == {cut is Proxy.cut_before}
    assert ids(await claim(direct, want=10)) == ["a", "b", "c"]


@each_cut
def test_whoever_enqueues_many_does_not_notice_that_it_was_cut_off(
    cut: Cut, url: str, proxy: Proxy
) -> None:
    """Its jobs were stored by the first try, or are by the second: they are its own either way."""
    with Penstock(proxy.url(url)) as app:
        task = app.task(name="task")(_nothing)
        task.enqueue_many([(), ()])
        fault = cut(proxy, runs("penstock.put("))
        handles = task.enqueue_many([() for _ in range(10)])
        assert fault.has_happened
        assert all(handle.created for handle in handles)
        assert sum(each.jobs for each in app.counts()) == 12


def _nothing() -> None: ...
