"""Apps on each engine that this version has, and a stand-in for a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from penstock import Penstock
from penstock.core.job import ErrorRecord, Job, Outcome, OutcomeKind
from penstock.engines.records import Ask, WorkerInfo


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test opened is closed when it ends."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in left if thread.name.startswith("penstock")] == []


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path) -> str:
    """The URL of an empty store."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


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
        engine = self._app._connect()
        await engine.open()
        try:
            await engine.join(WorkerInfo(id="hand", queues=("default",)))
            ask = Ask(worker="hand", queues=("default",), want=1, slots=1)
            (job,) = (await engine.exchange(ask)).jobs
            outcome = Outcome(job=job.id, attempt=job.attempt, kind=kind, result=result, **facts)
            await engine.exchange(Ask(worker="hand", outcomes=(outcome,)))
            await engine.leave("hand")
            return job
        finally:
            await engine.close()

    def succeeds(self, result: bytes) -> Job:
        return self.ends("succeeded", result=result)

    def fails(self, reason: str, traceback: str | None = None) -> Job:
        error = ErrorRecord(attempt=1, at=0.0, kind="E", message=reason, traceback=traceback)
        return self.ends("failed", reason=reason, error=error)


@pytest.fixture
def hand(app) -> HandWorker:
    """A worker that does what the test says, on the store of ``app``."""
    return HandWorker(app)
