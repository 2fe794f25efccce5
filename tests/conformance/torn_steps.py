"""Engines that do in two steps what has to be one: between them, another handle acts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from conformance.steps import known
from conformance.torn import Torn, others_act
from penstock.core import lifecycle
from penstock.core.job import Draft, Hold, State
from penstock.engines.records import (
    Ask,
    Cell,
    Exchange,
    Filter,
    Promoted,
    Pruned,
    QueueSettings,
    Receipt,
    Rewrite,
    Rewritten,
    Sighting,
)


class SettlesInTwoSteps(Torn):
    """Checks the fence, and settles later what has passed it."""

    async def exchange(self, ask: Ask) -> Exchange:
        inside = [
            outcome
            for outcome in ask.outcomes
            if (job := self.store.jobs.get(outcome.job)) is not None
            and (job.state, job.worker) == (State.RUNNING, ask.worker)
        ]
        await others_act()
        for outcome in inside:
            running = replace(self.job(outcome.job), state=State.RUNNING, worker=ask.worker)
            self.overwrite(lifecycle.settled(running, outcome, self.clock.now()))
        return await super().exchange(ask)


class BuriesInTwoSteps(Torn):
    """Compares the beat, and takes the lease later."""

    async def end_leases(self, dead: Sequence[Sighting]) -> list[str]:
        beats = {info.id: info.beat for info in await self.workers()}
        still = [each for each in dead if beats.get(each.worker) == each.beat]
        await others_act()
        for each in still:
            await self.leave(each.worker)
        return [each.worker for each in still]


class LooksForTheLeaseFirst(Torn):
    """Looks whether a worker has its lease, and settles and claims later."""

    async def exchange(self, ask: Ask) -> Exchange:
        lease = self.store.workers.get(ask.worker)
        await others_act()
        if lease is not None:
            self.store.workers[ask.worker] = lease
        return await super().exchange(ask)


class RewritesWithoutComparing(Torn):
    """Writes a job as it is to be, whatever became of the one that this was made from."""

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        await others_act()
        now = [replace(each, revision=self.job(each.job.id).revision) for each in rewrites]
        return await super().rewrite(now)


class LooksForIdsFirst(Torn):
    """Looks whether an id is known, and stores the job later."""

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        there = await self.get([draft.id for draft in drafts])
        await others_act()
        await super().enqueue(drafts)
        return [
            Receipt(draft.id, True) if job is None else known(draft.id, job.task)
            for draft, job in zip(drafts, there, strict=True)
        ]


class HoldsInTwoSteps(Torn):
    """Looks whether anybody knows the task, and holds the job later."""

    async def exchange(self, ask: Ask) -> Exchange:
        known = {task for info in await self.workers() for task in info.tasks}
        await others_act()
        answer = await super().exchange(ask)
        for outcome in ask.outcomes:
            job = self.store.jobs.get(outcome.job)
            if job and outcome.hold is Hold.UNKNOWN_TASK and job.task not in known:
                self.overwrite(replace(job, hold=outcome.hold, hold_cause=outcome.hold_cause))
        return answer


class ClaimsInTwoSteps(Torn):
    """Chooses jobs, and marks them as taken later."""

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(replace(ask, want=0))
        chosen = sorted(
            (
                job
                for job in self.store.jobs.values()
                if job.state is State.READY and job.hold is None and job.queue in ask.queues
            ),
            key=lambda job: job.order,
        )[: ask.want]
        await others_act()
        now = self.clock.now()
        claimed = [lifecycle.claimed(job, ask.worker, now, starts=True) for job in chosen]
        self.overwrite(*claimed)
        return replace(answer, jobs=tuple(claimed))


class CountsBeforeTheLock(Torn):
    """Counts how many run, and claims later up to what there was room for."""

    async def exchange(self, ask: Ask) -> Exchange:
        settings = await self.queues()
        running = [job.queue for job in self.store.jobs.values() if job.state is State.RUNNING]
        room = min(
            (
                most - running.count(queue)
                for queue in ask.queues
                if (most := settings.get(queue, QueueSettings()).most) is not None
            ),
            default=ask.want,
        )
        await others_act()
        limits = dict(self.store.settings)
        self.store.settings.clear()
        answer = await super().exchange(replace(ask, want=min(ask.want, max(0, room))))
        self.store.settings.update(limits)
        return answer


class LooksForKeysFirst(Torn):
    """Looks whether a unique key is taken, and stores the job later."""

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        taken = [job.unique for job in self.store.jobs.values() if not job.state.is_final]
        free = [draft for draft in drafts if draft.unique is None or draft.unique not in taken]
        await others_act()
        receipts = await super().enqueue([replace(draft, unique=None) for draft in free])
        self.overwrite(*(replace(self.job(draft.id), unique=draft.unique) for draft in free))
        return receipts


class NeedsItsKeyInTwoSteps(Torn):
    """Looks whether the key of a job that waits again is free, and lets it wait later."""

    async def exchange(self, ask: Ask) -> Exchange:
        free = [
            job
            for each in ask.outcomes
            if (job := self.job(each.job)).unique is not None
            and self.store.keys.taken(job.unique, job.id, self.clock.now()) is None
        ]
        await others_act()
        self.overwrite(*(replace(job, unique=None) for job in free))
        answer = await super().exchange(ask)
        self.overwrite(*(replace(self.job(job.id), unique=job.unique) for job in free))
        return answer


class PromotesInTwoSteps(Torn):
    """Reads what is due, and promotes it later."""

    async def promote(self, limit: int) -> Promoted:
        now = self.clock.now()
        due = [job for job in self.store.jobs.values() if job.state is State.SCHEDULED]
        due = [job for job in due if job.run_at is not None and job.run_at <= now]
        await others_act()
        self.overwrite(*(self.store.ticketed(lifecycle.promoted(job)) for job in due))
        return Promoted(ready=len(due))


class PrunesInTwoSteps(Torn):
    """Reads what is old, and deletes it later."""

    async def prune(self, limit: int) -> Pruned:
        old = [
            job.id
            for job in self.store.jobs.values()
            if lifecycle.forget_at(job) < self.clock.now()
        ][:limit]
        await others_act()
        await self.purge(Filter(ids=tuple(old)), limit)
        return Pruned(jobs=len(old))


class WritesCellsInTwoSteps(Torn):
    """Compares the version, and sets the value later."""

    async def set_cell(
        self, name: str, value: bytes | None, version: int, ttl: float | None = None
    ) -> Cell | None:
        if (await self.cell(name)).version != version:
            return None
        await others_act()
        return await super().set_cell(name, value, (await self.cell(name)).version, ttl)


class GivesTicketsInTwoSteps(Torn):
    """Reads the last ticket, and gives the next ones later."""

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        last = max((job.seq for job in self.store.jobs.values()), default=0)
        await others_act()
        receipts = await super().enqueue(drafts)
        created = [self.job(receipt.id) for receipt in receipts if receipt.created]
        self.overwrite(*(replace(job, seq=last + nr) for nr, job in enumerate(created, 1)))
        return receipts
