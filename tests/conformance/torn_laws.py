"""Engines that break one law each, the way real code breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from conformance.torn import Torn, others_act
from penstock.core.job import Change, Draft, Job, Outcome, OutcomeKind, State, Verdict
from penstock.core.lifecycle import NEW_TICKET, lifted
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import (
    Ask,
    Exchange,
    Filter,
    News,
    Page,
    Receipt,
    Repaired,
    Rewrite,
    Rewritten,
    Sighting,
    WorkerInfo,
)
from penstock.errors import LeaseLost


class SharesOneSnapshot(Torn):
    """Claims from what was there before it settled, as one statement with several parts does."""

    async def exchange(self, ask: Ask) -> Exchange:
        claimed = await super().exchange(replace(ask, outcomes=()))
        settled = await super().exchange(replace(ask, want=0))
        return replace(claimed, verdicts=settled.verdicts)


class LeavesPromotionToTheLeader(Torn):
    """Claims only what is ready already."""

    async def exchange(self, ask: Ask) -> Exchange:
        waiting = [job for job in self.store.jobs.values() if job.state is State.SCHEDULED]
        self.overwrite(*(replace(job, run_at=(job.run_at or 0) + 1e9) for job in waiting))
        answer = await super().exchange(ask)
        self.overwrite(*waiting)
        return answer


class HasNoFence(Torn):
    """Settles whatever it is told, by whomever."""

    async def exchange(self, ask: Ask) -> Exchange:
        for outcome in ask.outcomes:
            job = self.store.jobs.get(outcome.job)
            if job is not None and job.state is State.RUNNING:
                self.overwrite(replace(job, worker=ask.worker, claim=outcome.claim))
        return await super().exchange(ask)


class ComparesWorkersOnly(Torn):
    """A fence without the claim: the past of a worker settles its present."""

    async def exchange(self, ask: Ask) -> Exchange:
        present = {job.id: job.claim for job in self.store.jobs.values()}
        outcomes = (replace(each, claim=present.get(each.job, 0)) for each in ask.outcomes)
        return await super().exchange(replace(ask, outcomes=tuple(outcomes)))


class ForgetsWhoSettled(Torn):
    """Answers an outcome that is repeated as if it came from a stranger."""

    async def exchange(self, ask: Ask) -> Exchange:
        running = {id for id, job in self.store.jobs.items() if job.state is State.RUNNING}
        answer = await super().exchange(ask)
        verdicts = zip(ask.outcomes, answer.verdicts, strict=True)
        return replace(
            answer,
            verdicts=tuple(
                verdict if outcome.job in running else Verdict.STALE
                for outcome, verdict in verdicts
            ),
        )


class ChecksTheLeaseLast(Torn):
    """Writes first, and then finds that the worker has no lease."""

    async def exchange(self, ask: Ask) -> Exchange:
        if ask.worker in self.store.workers:
            return await super().exchange(ask)
        await self.join(WorkerInfo(id=ask.worker))
        await super().exchange(ask)
        await self.leave(ask.worker)
        raise LeaseLost(ask.worker)


class LosesWhatItHandedOut(Torn):
    """Knows of a claimed job only once it has started."""

    async def held(self, worker: str) -> list[Job]:
        return [job for job in await super().held(worker) if job.started]


class HappensLater(Torn):
    """A call whose caller has gone goes on behind everybody's back."""

    async def exchange(self, ask: Ask) -> Exchange:
        async def late() -> Exchange:
            await others_act()
            return await super(HappensLater, self).exchange(ask)

        return await asyncio.shield(asyncio.create_task(late()))


class GuessesDeath(Torn):
    """Buries who was seen, whatever it did since."""

    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        beats = {info.id: info.beat for info in await self.workers()}
        dead = [Sighting(each.worker, beats.get(each.worker, 0)) for each in dead]
        return await super().end_leases(dead)


class ChargesWhatHadNotStarted(Torn):
    """Takes every claimed job for a started one."""

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        page = await super().find(which, cursor, limit)
        if not which.workers:
            return page
        return Page(tuple(replace(job, started=True) for job in page.jobs), page.cursor)


class CallsACrashAFailure(Torn):
    """Counts a crash against the retries."""

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        return await super().rewrite([_rescued_as(each, _failed) for each in rewrites])


def _failed(job: Job) -> Job:
    return replace(job, failures=job.failures + job.crashes, crashes=0)


def _rescued_as(rewrite: Rewrite, change: Callable[[Job], Job]) -> Rewrite:
    is_rescue = rewrite.change is Change.RESCUE
    return replace(rewrite, job=change(rewrite.job)) if is_rescue else rewrite


class TakesACrashForARelease(Torn):
    """Gives back what crashed as if nothing had happened: the killer kills for ever."""

    async def exchange(self, ask: Ask) -> Exchange:
        return await super().exchange(replace(ask, outcomes=_told_as(OutcomeKind.RELEASED, ask)))


class TakesACrashForARetry(Torn):
    """Counts a crash that its worker tells of against the retries."""

    async def exchange(self, ask: Ask) -> Exchange:
        return await super().exchange(replace(ask, outcomes=_told_as(OutcomeKind.RETRY, ask)))


def _told_as(kind: OutcomeKind, ask: Ask) -> tuple[Outcome, ...]:
    return tuple(
        replace(each, kind=kind) if each.kind is OutcomeKind.CRASHED else each
        for each in ask.outcomes
    )


class ForgetsTheLedger(Torn):
    """Knows only the ids of jobs that are still there."""

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await super().enqueue([replace(draft, remember=0.0) for draft in drafts])


class RemembersWhatItRefused(Torn):
    """Writes the ledger before it knows whether the job goes in."""

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        receipts = await super().enqueue(drafts)
        for draft in drafts:
            if draft.remember > 0:
                self.store.ledger[draft.id] = (self.clock.now() + draft.remember, draft.task)
        return receipts


class ClaimsWhatIsHeld(Torn):
    """Forgets why a job was given back: it comes round again and again."""

    async def exchange(self, ask: Ask) -> Exchange:
        outcomes = tuple(replace(each, hold=None, hold_cause=None) for each in ask.outcomes)
        return await super().exchange(replace(ask, outcomes=outcomes))


class LeavesHoldsToTheLeader(Torn):
    """Says that a hold is lifted, and leaves it."""

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        lifts = [each for each in rewrites if each.change is Change.LIFT]
        if not lifts:
            return await super().rewrite(rewrites)
        return [Rewritten(Verdict.DONE, each.job) for each in lifts]


class LiftsHoldsThatHaveACause(Torn):
    """Takes every hold without an instant for one that a lost step has left."""

    async def join(self, worker: WorkerInfo) -> None:
        await super().join(worker)
        self._lift()

    async def repair(
        self, limit: int, cursor: str | None = None, *, rehearse: bool = False
    ) -> Repaired:
        self._lift()
        return await super().repair(limit, cursor, rehearse=rehearse)

    def _lift(self) -> None:
        held = [job for job in self.store.jobs.values() if job.hold and job.hold_until is None]
        self.overwrite(*(self.store.ticketed(lifted(job, self.clock.now())) for job in held))


class KeepsTheTicketOfALiftedHold(Torn):
    """What was held comes back to where it stood, before all that came meanwhile."""

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        tickets = {each.job.id: self.job(each.job.id).seq for each in rewrites}
        answers = await super().rewrite(rewrites)
        lifts = (each.job.id for each in rewrites if each.change is Change.LIFT)
        self.overwrite(*(replace(self.job(id), seq=tickets[id]) for id in lifts))
        return answers


class _OldTickets(MemoryStore):
    def ticketed(self, job: Job) -> Job:
        after, stored = super().ticketed(job), self.jobs.get(job.id)
        return replace(after, seq=stored.seq) if stored else after


class KeepsEveryTicket(Torn):
    """A job has one place in line for life, also when it tries again."""

    new_store = _OldTickets


class TakesANewTicketOnRelease(Torn):
    """What a worker gives back goes to the end of the line."""

    async def exchange(self, ask: Ask) -> Exchange:
        released = [each.job for each in ask.outcomes if each.kind is OutcomeKind.RELEASED]
        settled = await super().exchange(replace(ask, want=0))
        self.overwrite(*(self.store.ticketed(self.job(id)) for id in released))
        claimed = await super().exchange(replace(ask, outcomes=()))
        return replace(claimed, verdicts=settled.verdicts)


class TakesANewTicketOnRescue(Torn):
    """Who was in a crash goes to the end of the line."""

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        return await super().rewrite([_rescued_as(each, _last) for each in rewrites])


def _last(job: Job) -> Job:
    return replace(job, seq=NEW_TICKET) if job.state.is_waiting else job


class OrdersByIds(Torn):
    """Takes ids for the order of arrival."""

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(ask)
        return replace(answer, jobs=tuple(sorted(answer.jobs, key=lambda job: job.id)))


class EmptiesTheFirstQueueFirst(Torn):
    """No turns: the first queue asked for has it all."""

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(replace(ask, want=0))
        jobs: tuple[Job, ...] = ()
        for queue in ask.queues:
            left = ask.want - len(jobs)
            more = await super().exchange(
                replace(ask, queues=(queue,), want=left, slots=left, outcomes=())
            )
            jobs += more.jobs
        return replace(answer, jobs=jobs)


class StoresOneByOne(Torn):
    """A batch is a loop: what came before the bad item stays."""

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for draft in drafts:
            receipts += await super().enqueue([draft])
        return receipts


class SettlesOneByOne(Torn):
    """Outcomes are a loop: what came before the bad one is settled."""

    async def exchange(self, ask: Ask) -> Exchange:
        verdicts: tuple[Verdict, ...] = ()
        for outcome in ask.outcomes:
            one = await super().exchange(replace(ask, want=0, outcomes=(outcome,)))
            verdicts += one.verdicts
        return replace(await super().exchange(replace(ask, outcomes=())), verdicts=verdicts)


class WaitsForTheNextChange(Torn):
    """Sleeps until something changes, and does not ask what changed since it looked."""

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        return await super().listen(kind, await self.version(kind), timeout)


class HearsOnlyItself(Torn):
    """Is woken by the commits of its own process and by no others."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self._silence = asyncio.Event()

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        await self.clock.wait(self._silence, timeout)
        return await self.version(kind)


class SpinsOnWhatItCannotHave(Torn):
    """Tells a worker to come back at once for anything that is ready, given or not."""

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(ask)
        if any(job.state is State.READY for job in self.store.jobs.values()):
            return replace(answer, due_in=0.0)
        return answer


class SleepsOnTheWallClock(Torn):
    """Measures how long by asking what time it is."""

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        deadline, found = self.clock.now() + timeout, seen
        while found == seen and (left := deadline - self.clock.now()) > 0:
            found = await super().listen(kind, seen, left)
        return found


class WaitsAgainWithoutItsKey(Torn):
    """Asks for the unique key of a new job only."""

    async def exchange(self, ask: Ask) -> Exchange:
        kept = {each.job: self.job(each.job) for each in ask.outcomes}
        self.overwrite(*(replace(job, unique=None) for job in kept.values()))
        answer = await super().exchange(ask)
        self.overwrite(*(replace(self.job(id), unique=job.unique) for id, job in kept.items()))
        return answer


class KeepsKeysOfTheDead(Torn):
    """What is cancelled keeps its unique key."""

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        keys = {each.job.id: each.job.unique for each in rewrites}
        without = [replace(each, job=replace(each.job, unique=None)) for each in rewrites]
        answers = await super().rewrite(without)
        self.overwrite(*(replace(self.job(id), unique=key) for id, key in keys.items()))
        return answers


class PrefetchesAnything(Torn):
    """Hands out beyond the free slots what may run at most once."""

    async def exchange(self, ask: Ask) -> Exchange:
        return await super().exchange(replace(ask, slots=ask.want))


class RunsAgainWhatMayHaveRun(Torn):
    """Rescues like any other a job that may run at most once."""

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        page = await super().find(which, cursor, limit)
        if not which.workers:
            return page
        return Page(tuple(replace(job, at_most_once=False) for job in page.jobs), page.cursor)


class TurnsPagesByOffset(Torn):
    """A cursor that counts: what comes in between two pages moves all the rest."""

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        start = int(cursor or 0)
        jobs = (await super().find(which, None, 1_000_000)).jobs
        end = start + limit
        return Page(jobs[start:end], str(end) if end < len(jobs) else None)
