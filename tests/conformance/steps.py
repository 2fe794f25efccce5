"""The steps of a conformance test: short ways to say what a caller or a worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast
from unittest.mock import ANY

import pytest

from penstock.core.ids import new_id
from penstock.core.job import Draft, Job, Outcome, OutcomeKind, Verdict
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange, Filter, Receipt, Sighting, WorkerInfo
from penstock.errors import EngineBusy, ItemContested
from penstock.leader.election import CELL, Election

Answer = TypeVar("Answer")

TASK = "work"
"""The task of every job that names no other."""

patience = 10.0
"""Real seconds after which something that should come at once counts as never coming."""


async def soon(awaited: Awaitable[Answer]) -> Answer:
    """Return what comes at once; fail instead of hanging if it does not."""
    try:
        async with asyncio.timeout(patience):
            return await awaited
    except TimeoutError:
        raise AssertionError("it did not come") from None


def about(instant: float) -> Any:
    """The same instant, give or take what a server's clock moves during a test."""
    return pytest.approx(instant, abs=2.0)


def draft(id: str | None = None, **fields: Any) -> Draft:
    """A job as its caller describes it."""
    return Draft(id=id or new_id(), task=fields.pop("task", TASK), **fields)


async def uncontested(
    enqueue: Callable[[Sequence[Draft]], Awaitable[list[Receipt]]], drafts: Sequence[Draft]
) -> list[Receipt]:
    """Enqueue as soon as no open transaction has an id or a unique key of theirs."""
    while True:
        try:
            return await enqueue(drafts)
        except ItemContested:
            await asyncio.sleep(0)


async def put(engine: Engine, id: str | None = None, **fields: Any) -> str:
    """Enqueue one new job; return its id."""
    (receipt,) = await engine.enqueue([draft(id, **fields)])
    assert receipt.created
    return receipt.id


async def enqueue_jobs(engine: Engine, count: int, **fields: Any) -> list[str]:
    """Enqueue new jobs in one batch; return their ids in order."""
    receipts = await engine.enqueue([draft(**fields) for _ in range(count)])
    assert all(receipt.created for receipt in receipts)
    return [receipt.id for receipt in receipts]


async def joined(engine: Engine, *, tasks: Sequence[str] = (TASK,)) -> str:
    """Give a new worker its lease; return its id."""
    worker = new_id()
    await engine.join(WorkerInfo(id=worker, tasks=tuple(tasks)))
    return worker


async def joined_and_lifted(engine: Engine, *, tasks: Sequence[str]) -> str:
    """Join as a worker process does: then what waited for one of its tasks is lifted."""
    worker = await joined(engine, tasks=tasks)
    await changes.lift_known(engine, tasks)
    return worker


async def rejoined(engine: Engine, worker: str | None) -> None:
    """Give a worker that was there before a lease under its old name."""
    assert worker is not None
    await engine.join(WorkerInfo(id=worker))


def ask(
    worker: str | None, *queues: str, want: int = 1, slots: int | None = None, **more: Any
) -> Ask:
    """What a worker asks for; unless told, of the default queue, and with a slot for each job."""
    assert worker is not None
    slots = want if slots is None else slots
    return Ask(worker=worker, queues=queues or ("default",), want=want, slots=slots, **more)


async def claim(
    engine: Engine, *queues: str, worker: str | None = None, want: int = 1, **more: Any
) -> list[Job]:
    """Claim jobs, for a worker of its own if none is named."""
    worker = worker or await joined(engine)
    return list((await engine.exchange(ask(worker, *queues, want=want, **more))).jobs)


def created(id: str) -> Receipt:
    """The receipt of a job that was stored, whatever its ticket."""
    return Receipt(id, True, None, cast(int, ANY))


def known(id: str, task: str = TASK) -> Receipt:
    """The receipt of a draft whose id a job of this task has."""
    return Receipt(id, created=False, because="id", task=task)


async def claim_one(engine: Engine, *queues: str, worker: str | None = None, **more: Any) -> Job:
    """Claim the one job that must be there."""
    jobs = await claim(engine, *queues, worker=worker, **more)
    assert len(jobs) == 1, jobs
    return jobs[0]


async def running(engine: Engine, id: str | None = None, **fields: Any) -> Job:
    """Enqueue a job in a queue of its own and let a new worker run it."""
    queue = fields.pop("queue", None) or f"only-{new_id()}"
    await put(engine, id, queue=queue, **fields)
    return await claim_one(engine, queue)


async def told(engine: Engine, job: Job, kind: str, **fields: Any) -> Verdict:
    """Settle a job, as often as it takes while somebody else has its row or its key."""
    while True:
        try:
            verdict = await settle(engine, job, kind, **fields)
        except EngineBusy:
            continue
        if verdict is not Verdict.LATER:
            return verdict


def outcome(job: Job, kind: OutcomeKind | str, **fields: Any) -> Outcome:
    """What this attempt ended as."""
    return Outcome(job=job.id, claim=job.claim, kind=OutcomeKind(kind), **fields)


async def send(engine: Engine, worker: str | None, *outcomes: Outcome, **more: Any) -> Exchange:
    """Bring outcomes and claim nothing."""
    assert worker is not None
    return await engine.exchange(Ask(worker=worker, outcomes=outcomes, **more))


async def settle(
    engine: Engine, job: Job, kind: OutcomeKind | str, *, by: str | None = None, **fields: Any
) -> Verdict:
    """End this attempt, as its own worker unless ``by`` names another."""
    (verdict,) = (await send(engine, by or job.worker, outcome(job, kind, **fields))).verdicts
    return verdict


async def finished(engine: Engine, kind: OutcomeKind | str, **fields: Any) -> Job:
    """A job that has run and ended as ``kind``."""
    job = await running(engine, **fields)
    assert await settle(engine, job, kind) is Verdict.DONE
    return await stored(engine, job.id)


async def stored(engine: Engine, id: str) -> Job:
    """The job as it is in the store now."""
    (job,) = await engine.get([id])
    assert job is not None
    return job


async def everything(engine: Engine) -> tuple[Job, ...]:
    """All jobs in the store, as they are now."""
    page = await engine.find(Filter(), None, 100_000)
    return page.jobs


async def bury(engine: Engine, *workers: str | None, limit: int = 1000) -> list[Job]:
    """Rescue what these workers have: an observer saw each stand still at its present beat."""
    beats = {info.id: info.beat for info in await engine.workers()}
    return await changes.rescue(engine, [Sighting(id, beats[id]) for id in workers if id], limit)


def standing_still(job: Job) -> Sighting:
    """The worker of this job, which has never beaten, as an observer saw it."""
    assert job.worker is not None
    return Sighting(job.worker, 0)


def ids(jobs: Sequence[Job]) -> list[str]:
    """The ids of these jobs, in order."""
    return [job.id for job in jobs]


async def elect(engine: Engine, candidate: str, ttl: float) -> bool:
    """Let a candidate stand for election; say whether it leads."""
    election = Election(candidate, engine.clock, ttl)
    await election.stand(engine)
    return election.epoch is not None


async def depose(engine: Engine) -> None:
    """Let there be no leader, as after a resignation."""
    cell = await engine.cell(CELL)
    assert await engine.set_cell(CELL, None, cell.version)
