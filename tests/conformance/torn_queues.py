"""Engines that hand out of a queue what its order, or the worker, does not want next."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from msgspec.structs import replace

from conformance.torn import Torn
from penstock.core.fairness import STRIDE
from penstock.core.job import Job, State
from penstock.engines.memory.key_lines import KeyLines
from penstock.engines.memory.lines import JobLine
from penstock.engines.memory.queues import MemoryQueues, claim_key, fits
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


# --- fair queues ----------------------------------------------------------------------------------


class ServesInOrderOfArrival(Torn):
    """Calls a queue fair and does nothing for it."""

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await super().set_queue(queue, replace(settings, fair=False))


def _with(lines: type[KeyLines]) -> MemoryStore:
    """A store whose key lines are of a broken kind."""
    queues = MemoryQueues()
    queues.key_lines = defaultdict(lambda: lines(lambda: JobLine(_ticket, queues.jobs.get)))
    return MemoryStore(queues)


def _ticket(job: Job) -> tuple[int] | None:
    return None if claim_key(job) is None else (job.seq,)


class _WithoutNotes(KeyLines):
    def enter(self, job: Job) -> None:
        notes = dict(self._notes)
        super().enter(job)
        self._notes = notes


class LosesTheNoteOfAKeyLine(Torn):
    """A job enters the line of its key, and no claim is told to look there."""

    new_store = lambda: _with(_WithoutNotes)  # noqa: E731


class _EntersAtItsOwnPlace(KeyLines):
    def _virtual_time(self, priority: int) -> int:
        return -STRIDE


class GivesIdleTimeBack(Torn):
    """A key goes on where it stood when it had no jobs, however long ago."""

    new_store = lambda: _with(_EntersAtItsOwnPlace)  # noqa: E731


class _EntersAtTheVirtualTime(KeyLines):
    def _virtual_time(self, priority: int) -> int:
        return super()._virtual_time(priority) - STRIDE // 2


class LetsNewKeysPass(Torn):
    """A key that comes for the first time is level with the next one, and may pass it."""

    new_store = lambda: _with(_EntersAtTheVirtualTime)  # noqa: E731
