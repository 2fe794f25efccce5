"""A random life of a small store, told verb by verb; one seed is always the same story."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from conformance.steps import ask, draft, everything, outcome
from penstock.core.job import Draft, Hold, Job, Outcome, OutcomeKind, State
from penstock.engines import changes, reads
from penstock.engines.engine import Engine
from penstock.engines.records import Filter, QueueSettings, Report, Sighting, WorkerInfo
from penstock.testing.clock import FakeClock

QUEUES = ("a", "b")
ALL = 1000


class Story:
    """Who tells it: what happens next is thrown with dice."""

    def __init__(self, engine: Engine, clock: FakeClock, seed: int) -> None:
        self.engine = engine
        self.clock = clock
        self.dice = random.Random(seed)
        self.workers: list[str] = []

    async def chapter(self) -> tuple[str, object]:
        """Let one verb happen; return its name and its answer."""
        verbs = [self.enqueue, self.exchange, self.exchange, self.exchange, self.promote]
        verbs += [self.join, self.rescue, self.cancel, self.retry, self.hold, self.lift]
        verbs += [self.set_queue, self.repair, self.tidy]
        verb = self.dice.choice(verbs)
        return verb.__name__, await verb()

    async def enqueue(self) -> object:
        drafts = [self._draft() for _ in range(self.dice.randint(1, 4))]
        # Tickets only grow: which ones are used is the business of each store.
        return [replace(each, ticket=0) for each in await self.engine.enqueue(drafts)]

    def _draft(self) -> Draft:
        pick = self.dice.choice
        return draft(
            f"job-{self.dice.randrange(60)}",
            task=pick(["work", "new"]),
            queue=pick(QUEUES),
            priority=pick([0, 5]),
            delay=pick([0, 0, 30]),
            expires_in=pick([None, None, 90]),
            remember=pick([0, 300]),
            key=pick([None, "k", "l"]),
            unique=pick([None, None, "u", "v"]),
            unique_until=pick(["done", "start"]),
            unique_for=pick([0, 60]),
            at_most_once=pick([False, False, True]),
            keep=pick([200.0, 200.0, 1000.0]),
        )

    async def join(self) -> object:
        tasks = await self._join()
        # A worker that dies here leaves the holds to a repair.
        return await changes.lift_known(self.engine, tasks) if self.dice.random() < 0.7 else None

    async def _join(self) -> tuple[str, ...]:
        self.workers.append(f"w-{self.dice.randrange(100_000)}")
        tasks = ("work", "new") if self.dice.random() < 0.2 else ("work",)
        await self.engine.join(WorkerInfo(id=self.workers[-1], tasks=tasks))
        return tasks

    async def exchange(self) -> object:
        if not self.workers:
            await self._join()
        worker = self.dice.choice(self.workers)
        held = await self.engine.held(worker)
        begun = tuple((job.id, job.claim) for job in held if self.dice.random() < 0.5)
        reports = tuple(self._report(job) for job in held if self.dice.random() < 0.3)
        outcomes = tuple(self._ending(job) for job in held if self.dice.random() < 0.6)
        want = self.dice.randint(0, 3)
        slots = self.dice.randint(0, want)
        turn = ask(
            worker,
            *QUEUES,
            want=want,
            slots=slots,
            outcomes=outcomes,
            begun=begun,
            reports=reports,
            least_urgent=self.dice.choice([None, None, 0]),
        )
        answer = await self.engine.exchange(turn)
        claimed = [(job.id, job.claim, job.started) for job in answer.jobs]
        ended = answer.overruled, answer.abandoned
        return claimed, answer.verdicts, sorted(answer.cancels), ended, answer.due_in

    def _ending(self, job: Job) -> Outcome:
        kind = self.dice.choice(list(OutcomeKind))
        hold = self.dice.choice([None, Hold.RATE, Hold.UNKNOWN_TASK])
        delay = self.dice.choice([0, 20])
        if kind is not OutcomeKind.RELEASED:
            hold = None
        has_begun = kind is not OutcomeKind.RELEASED or self.dice.random() < 0.5
        cause = hold and job.task
        return outcome(job, kind, hold=hold, hold_cause=cause, delay=delay, has_begun=has_begun)

    def _report(self, job: Job) -> Report:
        pick = self.dice.choice
        return Report(
            job=job.id,
            claim=job.claim,
            fraction=pick([None, 0.5]),
            note=pick([None, "half"]),
            checkpoint=pick([None, b'{"page":3}']),
        )

    async def promote(self) -> object:
        self.clock.advance(self.dice.choice([1, 25, 100]))
        return await self.engine.promote(self.dice.choice([1, ALL]))

    async def rescue(self) -> object:
        beats = {info.id: info.beat for info in await self.engine.workers()}
        dead = [worker for worker in self.workers if self.dice.random() < 0.3]
        self.workers = [worker for worker in self.workers if worker not in dead]
        rescued = await changes.rescue(self.engine, [Sighting(id, beats[id]) for id in dead], ALL)
        return sorted((job.id, job.state) for job in rescued)

    async def cancel(self) -> object:
        return await changes.cancel(
            self.engine, self._some(await everything(self.engine)), "enough"
        )

    async def retry(self) -> object:
        return await changes.retry(self.engine, self._some(await everything(self.engine)))

    async def hold(self) -> object:
        some = self._some(await everything(self.engine))
        kind = self.dice.choice([Hold.RATE, Hold.BREAKER, Hold.UNKNOWN_TASK, Hold.MOVING])
        until = self.dice.choice([None, await reads.now(self.engine) + 20])
        return await changes.hold(self.engine, some, kind, "why", until)

    async def lift(self) -> object:
        some = self._some(await everything(self.engine))
        kind = self.dice.choice([Hold.RATE, Hold.BREAKER, Hold.UNKNOWN_TASK, Hold.MOVING])
        return await changes.lift(self.engine, some, kind)

    def _some(self, jobs: Sequence[Job]) -> list[str]:
        return [job.id for job in jobs if self.dice.random() < 0.2]

    async def set_queue(self) -> object:
        settings = QueueSettings(
            fair=self.dice.random() < 0.5,
            weights=self.dice.choice([{}, {"k": 4.0}, {"k": 0.01, "l": 100.0}]),
            max_running_per_key=self.dice.choice([None, None, 1, 2]),
            max_running=self.dice.choice([None, 1, 3]),
            ordered=self.dice.random() < 0.3,
            paused=self.dice.random() < 0.2,
        )
        await self.engine.set_queue(self.dice.choice(QUEUES), settings)
        return settings

    async def repair(self) -> object:
        rehearse = self.dice.random() < 0.3
        holds = await changes.repair_holds(self.engine, ALL, rehearse=rehearse)
        return holds, await self.engine.repair(ALL, rehearse=rehearse)

    async def tidy(self) -> object:
        purged = await self.engine.purge(Filter(states=(State.SUCCEEDED,)), ALL)
        pruned = await self.engine.prune(ALL)
        # When a store wants it again is its own business.
        return purged, replace(pruned, again_in=None)
