"""Apps on each engine that this version has, and a stand-in for a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock import Penstock
from penstock.core.job import ErrorRecord, Job, Outcome, OutcomeKind
from penstock.engines.records import Ask, WorkerInfo
from penstock.engines.waiting import wait_for_results


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test opened is closed when it ends."""
    before = set(threading.enumerate())
    yield
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]
    for thread in ours:
        if thread not in before:
            thread.join(5)
            assert not thread.is_alive(), thread


ENGINES = ("sqlite", "memory", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests run on one engine, unless they go into the store by a way that engines have each."""
    if "url" in metafunc.fixturenames:
        is_on_every = metafunc.definition.get_closest_marker("every_engine") is not None
        metafunc.parametrize("url", ENGINES if is_on_every else ENGINES[:1], indirect=True)


@pytest.fixture
def url(request, tmp_path) -> str:
    """The URL of an empty store."""
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case _:
            from servers.emptied import emptied

            database = emptied()
            database.empty()
            return database.url


@pytest.fixture
def app(url) -> Iterator[Penstock]:
    """An app on an empty store."""
    with Penstock(url) as app:
        yield app


@pytest.fixture
def memory() -> Iterator[Penstock]:
    """An app in memory, where the engine makes no difference."""
    with Penstock("memory://") as app:
        yield app


class HandWorker:
    """Takes one job at a time from the default queue and ends it as told."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def ends(self, kind: str, *, result: bytes | None = None, **facts: object) -> Job:
        """Take the next job and end it."""
        return asyncio.run(self._ends(OutcomeKind(kind), result, facts))

    async def _ends(self, kind: OutcomeKind, result: bytes | None, facts: dict) -> Job:
        engine = self._app._source.connect()
        await engine.open()
        try:
            await engine.join(WorkerInfo(id="hand", queues=("default",)))
            ask = Ask(worker="hand", queues=("default",), want=1, slots=1)
            (job,) = (await engine.exchange(ask)).jobs
            outcome = Outcome(job=job.id, claim=job.claim, kind=kind, result=result, **facts)
            await engine.exchange(Ask(worker="hand", outcomes=(outcome,)))
            await engine.leave("hand")
            return job
        finally:
            await engine.close()

    async def asucceeds(self, result: bytes) -> Job:
        return await self._ends(OutcomeKind.SUCCEEDED, result, {})

    def succeeds(self, result: bytes) -> Job:
        return self.ends("succeeded", result=result)

    def fails(self, reason: str, traceback: str | None = None) -> Job:
        error = ErrorRecord(attempt=1, at=0.0, kind="E", message=reason, traceback=traceback)
        return self.ends("failed", reason=reason, error=error)


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Future]]:
    """Call a function in a thread of its own; all of them have ended when the test ends."""
    with ThreadPoolExecutor(max_workers=100) as pool:
        yield pool.submit


@pytest.fixture
def hand(app) -> HandWorker:
    """A worker that does what the test says, on the store of ``app``."""
    return HandWorker(app)


class Calls:
    """What was asked of ``wait_for_results``: how many calls at a time, and for which ids."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most_at_once = 0
        self.asked: list[tuple[frozenset[str], float]] = []
        self.error: Exception | None = None
        self._changed = threading.Condition()

    def wrap(self, results):
        async def counted(engine, ids, timeout):
            with self._changed:
                self.under_way += 1
                self.most_at_once = max(self.most_at_once, self.under_way)
                self.asked.append((frozenset(ids), timeout))
                self._changed.notify_all()
            try:
                if self.error is not None:
                    raise self.error
                return await results(engine, ids, timeout)
            finally:
                self.under_way -= 1

        return counted

    def wait_until_asked_for(self, ids) -> None:
        """Wait for a call that sleeps on exactly these."""
        wanted = frozenset(ids)
        self.wait_until(lambda: any(ids == wanted and timeout for ids, timeout in self.asked))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a call makes it true."""
        with self._changed:
            assert self._changed.wait_for(condition, 10), self.asked


@pytest.fixture
def calls(monkeypatch):
    calls = Calls()
    monkeypatch.setattr("penstock.client.wait_for_results", calls.wrap(wait_for_results))
    return calls


async def turns_of_the_loop(_client: object) -> None:
    """Let everything that can happen on Penstock's loop happen."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def settle():
    """Work for the façade: let its loop come to rest."""
    return turns_of_the_loop
