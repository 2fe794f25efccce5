"""What people and the leader do to jobs, on any engine.

Jobs are read, ``core.lifecycle`` says what becomes of them, and ``rewrite`` writes those that
nothing else has changed meanwhile; the others are looked at again. So what may happen to a job is
decided in one place, and a job changes wholly or not at all, whenever a process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from penstock.core import lifecycle
from penstock.core.holds import CAUSES, Facts, has_cause
from penstock.core.job import CRASH_LIMIT, Change, Hold, Job, State, Verdict
from penstock.engines.engine import Engine
from penstock.engines.records import Control, Filter, Rewrite, Rewritten, Sighting
from penstock.errors import EngineBusy

BATCH: Final = 200
"""Jobs that one step changes at most."""

TRIES: Final = 10
"""How often a job that keeps changing is looked at."""

_CLOCK: Final = "clock"
"""A cell that is never written: any cell says what time it is in the store."""

After = Callable[[Job, str | None], Job | None]
"""The job as it is to be, or None if nothing is to happen to it. The text is the other job that has
the unique key which it needs."""


async def cancel(engine: Engine, ids: Sequence[str], reason: str) -> list[Control]:
    """Cancel jobs that wait; ask running ones to end (their worker learns it by ``exchange``).

    Idempotent: a job that has ended, or was asked already, is not changed.
    """
    now = await _now(engine)

    def after(job: Job, _: str | None) -> Job | None:
        if job.state.is_final or job.cancel_reason is not None:
            return None
        return lifecycle.cancelled(job, reason, now)

    return await _control(engine, ids, Change.CANCEL, after)


async def retry(engine: Engine, ids: Sequence[str]) -> list[Control]:
    """Send failed or cancelled jobs back to ready, with a new ticket and no failures.

    Jobs in any other state are not changed. One whose unique key another one has is not changed,
    and ``owner`` names that one.
    """

    def after(job: Job, owner: str | None) -> Job | None:
        has_ended_badly = job.state in (State.FAILED, State.CANCELLED)
        return lifecycle.revived(job) if has_ended_badly and owner is None else None

    return await _control(engine, ids, Change.REVIVE, after)


async def hold(
    engine: Engine, ids: Sequence[str], kind: Hold, cause: str, until: float | None = None
) -> list[Control]:
    """Let jobs that wait not start while ``cause`` stands, or before the instant ``until``. One
    that is held already is not changed.
    """

    def after(job: Job, _: str | None) -> Job | None:
        is_free = job.state.is_waiting and job.hold is None
        return lifecycle.held(job, kind, cause, until) if is_free else None

    return await _control(engine, ids, Change.HOLD, after)


async def lift(engine: Engine, ids: Sequence[str], kind: Hold) -> list[Control]:
    """The cause of these jobs' holds of this kind is gone: they may start, with new tickets."""
    now = await _now(engine)

    def after(job: Job, _: str | None) -> Job | None:
        return lifecycle.lifted(job, now) if job.hold is kind else None

    return await _control(engine, ids, Change.LIFT, after)


async def lift_known(engine: Engine, tasks: Collection[str], batch: int = BATCH) -> int:
    """Let jobs wait no longer for these tasks, which a worker knows; return how many did.

    In batches, each a step of its own: if this process dies, ``repair_holds`` goes on.
    """
    which = Filter(holds=(Hold.UNKNOWN_TASK,), tasks=tuple(tasks))
    lifted = 0
    cursor: str | None = None
    while True:
        page = await engine.find(which, cursor, batch)
        told = await lift(engine, [job.id for job in page.jobs], Hold.UNKNOWN_TASK)
        lifted += sum(each.changed for each in told)
        cursor = page.cursor
        if cursor is None:
            return lifted


async def repair_holds(
    engine: Engine, limit: int, cursor: str | None = None, *, rehearse: bool = False
) -> tuple[int, str | None]:
    """Lift the holds of which the cause is gone, of up to ``limit`` jobs; return how many, and the
    cursor to go on with. With ``rehearse``, only count them.
    """
    page = await engine.find(Filter(holds=tuple(CAUSES)), cursor, limit)
    if not page.jobs:
        return 0, None
    facts = Facts(frozenset(task for each in await engine.workers() for task in each.tasks))
    lost = [job for job in page.jobs if not has_cause(job, facts)]
    if not rehearse:
        for kind in {job.hold for job in lost if job.hold is not None}:
            await lift(engine, [job.id for job in lost if job.hold is kind], kind)
    return len(lost), page.cursor


async def edit(
    engine: Engine,
    ids: Sequence[str],
    *,
    queue: str | None = None,
    priority: int | None = None,
    run_in: float | None = None,
) -> list[Control]:
    """Let jobs that wait do so in another queue, with another urgency, or until so many seconds
    from now; at 0 they are due. Jobs that do not wait are not changed.
    """
    now = await _now(engine)

    def after(job: Job, _: str | None) -> Job | None:
        if not job.state.is_waiting:
            return None
        return lifecycle.edited(
            job,
            now,
            queue=job.queue if queue is None else queue,
            priority=job.priority if priority is None else priority,
            run_at=job.run_at if run_in is None else now + run_in,
        )

    return await _control(engine, ids, Change.EDIT, after)


async def adopt(engine: Engine, jobs: Iterable[Job], remember: float) -> list[Rewritten]:
    """Let jobs that wait in another store enter this one under their ids, which the ledger keeps
    for ``remember`` seconds. Repeated, it changes nothing.
    """
    return await engine.rewrite(
        [
            Rewrite(job=job, revision=None, change=Change.EDIT, remember=remember)
            for job in jobs
            if job.state.is_waiting
        ]
    )


async def rescue(
    engine: Engine, dead: Sequence[Sighting], limit: int, crash_limit: int = CRASH_LIMIT
) -> list[Job]:
    """Take up to ``limit`` running jobs from workers that have no lease; return them as they are
    now, in the order of the line. One that has crashed ``crash_limit`` times by it has failed.

    Each worker in ``dead`` whose beat is still the one seen loses its lease first. A job that would
    wait again needs its unique key again (law 13). Idempotent; call again until it returns nothing.
    """
    if dead:
        await engine.end_leases(dead)
    # In this order: a worker is known before it has anything, and its name is never used again.
    having = {each.worker for each in await engine.running()}
    gone = having - {each.id for each in await engine.workers()} if having else set()
    if not gone or limit <= 0:
        return []
    page = await engine.find(Filter(workers=tuple(sorted(gone))), None, limit)
    now = await _now(engine)

    def after(job: Job, owner: str | None) -> Job | None:
        if job.state is not State.RUNNING or job.worker not in gone:
            return None
        rescued = lifecycle.rescued(job, now, crash_limit)
        return rescued if owner is None else lifecycle.superseded(rescued, owner, now)

    answers = await _rewrite(engine, page.jobs, Change.RESCUE, after)
    rescued = [each.job for each in answers.values() if each.verdict is Verdict.DONE and each.job]
    return sorted(rescued, key=lambda job: job.order)


async def _now(engine: Engine) -> float:
    return (await engine.cell(_CLOCK)).now


async def _control(
    engine: Engine, ids: Sequence[str], change: Change, after: After
) -> list[Control]:
    """Change the jobs with these ids; say what became of each."""
    jobs = {job.id: job for job in await engine.get(ids) if job is not None}
    answers = await _rewrite(engine, jobs.values(), change, after)
    told: list[Control] = []
    for id in ids:
        # An id that is given twice is changed once.
        answer = answers.pop(id, None) or Rewritten(Verdict.STALE, jobs.get(id))
        if answer.verdict is Verdict.LATER:
            why = f"an open transaction has job {id!r} or its unique key"
            raise EngineBusy(engine.traits.name, why)
        if answer.job is not None:
            jobs[id] = answer.job
        state = answer.job.state if answer.job else None
        told.append(Control(id, answer.verdict is Verdict.DONE, state, answer.owner))
    return told


async def _rewrite(
    engine: Engine, jobs: Iterable[Job], change: Change, after: After
) -> dict[str, Rewritten]:
    """Change these jobs; return what became of those that were to change, by their ids."""
    left: list[tuple[Job, str | None]] = [(job, None) for job in jobs]
    answers: dict[str, Rewritten] = {}
    for _ in range(TRIES):
        wanted = [(job, next) for job, owner in left if (next := after(job, owner)) is not None]
        if not wanted:
            return answers
        rewrites = [Rewrite(job=next, revision=job.revision, change=change) for job, next in wanted]
        left = []
        for rewrite, answer in zip(rewrites, await engine.rewrite(rewrites), strict=True):
            answers[rewrite.job.id] = answer
            if answer.verdict is Verdict.STALE and answer.job is not None:
                left.append((answer.job, answer.owner))
    raise EngineBusy(engine.traits.name, f"job {left[0][0].id!r} keeps changing")
