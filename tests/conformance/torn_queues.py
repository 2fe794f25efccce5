"""Engines that hand out of a queue what its order, or the worker, does not want next."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from conformance.torn import Torn
from penstock.core.job import Job, State
from penstock.engines.memory.queues import MemoryQueues, fits
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Ask, Exchange, QueueSettings


class GivesWhatIsNotUrgent(Torn):
    """Fills the slots that a worker keeps for urgent jobs with any."""

    async def exchange(self, ask: Ask) -> Exchange:
        return await super().exchange(replace(ask, least_urgent=None))


class FiltersUrgentJobsAfterTheClaim(Torn):
    """Takes the first in line, and gives back at once what was not wanted."""

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(replace(ask, least_urgent=None))
        if ask.least_urgent is None:
            return answer
        unwanted = [job for job in answer.jobs if job.priority > ask.least_urgent]
        self.overwrite(*(replace(job, state=State.READY, started=False) for job in unwanted))
        return replace(answer, jobs=tuple(job for job in answer.jobs if job not in unwanted))


class TakesOrderForALimit(Torn):
    """Runs one job at a time, and lets others pass one that waits for its retry."""

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        if settings.ordered:
            settings = replace(settings, ordered=False, max_running=1)
        await super().set_queue(queue, settings)


class _RetriesStandInLine(MemoryQueues):
    def blockers(self, queue: str, now: float) -> list[Job]:
        return [job for job in super().blockers(queue, now) if job.state is State.SCHEDULED]


class LetsOthersPassARetryThatIsReady(Torn):
    """A retry blocks the queue while it waits, and stands at the end of the line after it."""

    new_store = lambda: MemoryStore(_RetriesStandInLine())  # noqa: E731


class _EverybodyBlocks(MemoryQueues):
    def blockers(self, queue: str, now: float) -> list[Job]:
        if not self.is_ordered(queue):
            return []
        waiting = [job for job in self.jobs.values() if job.queue == queue]
        return [job for job in waiting if job.state.is_waiting and job.attempt]


class TakesEveryPastAttemptForAnOpenJob(Torn):
    """Counts attempts: what a person sent back comes before all others."""

    new_store = lambda: MemoryStore(_EverybodyBlocks())  # noqa: E731


class _NextFits(MemoryQueues):
    def next_in_order(self, ask: Ask, queue: str, now: float) -> list[Job]:
        if self.blockers(queue, now):
            return super().next_in_order(ask, queue, now)
        return self.ready[queue].heads(1, partial(fits, ask, now))


class PassesOverInAnOrderedQueue(Torn):
    """Gives the first job that this worker could have, whoever stands before it."""

    new_store = lambda: MemoryStore(_NextFits())  # noqa: E731


class SleepsThroughTheRetry(Torn):
    """Looks for what falls due among the jobs that never ran."""

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(ask)
        scheduled = [job for job in self.store.jobs.values() if job.state is State.SCHEDULED]
        instants = [job.run_at or 0.0 for job in scheduled if not job.is_open]
        return replace(answer, due_in=min(instants) - self.clock.now() if instants else None)
