"""Read the store, and say why a job is where it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from penstock.core.job import State
from penstock.engines import reads
from penstock.engines.engine import Engine
from penstock.engines.reads import Standing
from penstock.engines.records import WorkerInfo
from penstock.explain import ended, running, waiting
from penstock.explain.reasons import REMARKS, Code, Explanation, JobSnapshot, Reason
from penstock.leader.election import present_term

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the beats of workers."""

_UNSURE: Final = frozenset(
    {Code.NEXT, Code.DUE, Code.OVERLOOKED, Code.LINE, Code.NO_LEADER, Code.BUSY}
)
"""Reasons that hold only if the workers live, which a watch tells."""


async def explain(engine: Engine, id: str, watch: float = 0.0) -> Explanation:
    """Say why this job is where it is.

    If that depends on whether its workers live, their beats are watched until one moves, at most
    ``watch`` seconds.
    """
    snapshot = await _snapshot(engine, id)
    if isinstance(snapshot, Standing):
        reason = ended.gone()
        return Explanation(id=id, verdict=reason.text, reasons=(reason,), asked_at=snapshot.now)
    reasons = _reasons(snapshot)
    is_running = snapshot.job.state is State.RUNNING
    if watch > 0 and (is_running or reasons[0].code in _UNSURE):
        whom = [snapshot.worker(snapshot.job.worker)] if is_running else snapshot.able
        silent = await _silent(engine, [each for each in whom if each is not None], watch)
        snapshot = await _snapshot(engine, id, silent)
        if isinstance(snapshot, Standing):
            return await explain(engine, id)
        reasons = _reasons(snapshot)
    return Explanation(
        id=id,
        verdict=_verdict(snapshot, reasons),
        reasons=tuple(reasons),
        asked_at=snapshot.now,
        state=snapshot.job.state,
        task=snapshot.job.task,
        queue=snapshot.job.queue,
    )


async def _snapshot(
    engine: Engine, id: str, silent: dict[str, float] | None = None
) -> JobSnapshot | Standing:
    """What there is to know; only the standing if the job is not in the store."""
    standing = await reads.standing(engine, id)
    job = standing.job
    if job is None:
        return standing
    if job.state.is_final:
        return JobSnapshot(job, standing)
    return JobSnapshot(
        job,
        replace(standing, job=None),
        tuple(await engine.workers()),
        tuple(await engine.running()),
        await present_term(engine),
        silent,
    )


async def _silent(engine: Engine, workers: Iterable[WorkerInfo], watch: float) -> dict[str, float]:
    """Watch until one of these workers beats, leaves or joins again; else all are silent."""
    clock = engine.clock
    beats = {worker.id: worker.beat for worker in workers}
    began = clock.monotonic()
    while beats:
        now = {worker.id: worker.beat for worker in await engine.workers()}
        if any(now.get(id) != beat for id, beat in beats.items()):
            return {}
        lasted = clock.monotonic() - began
        if lasted >= watch:
            return dict.fromkeys(beats, lasted)
        await clock.sleep(min(LOOK_EVERY, watch - lasted))
    return {}


def _reasons(snapshot: JobSnapshot) -> list[Reason]:
    job = snapshot.job
    match job.state:
        case State.RUNNING:
            found = running.reasons(snapshot)
        case State.SCHEDULED | State.READY:
            found = waiting.reasons(snapshot)
        case State.SUCCEEDED | State.FAILED | State.CANCELLED:
            return ended.reasons(job, snapshot.now)
    found.sort(key=lambda reason: reason.code.weight)
    return [*found, *waiting.remarks(job, snapshot.now)]


def _verdict(snapshot: JobSnapshot, reasons: list[Reason]) -> str:
    others = [reason for reason in reasons[1:] if reason.code not in REMARKS]
    more = ""
    if snapshot.job.state.is_waiting and others:
        more = f" (and {len(others)} more)" if len(others) > 1 else " (and one more reason)"
    return f"{snapshot.job.state}: {reasons[0].text}{more}"
