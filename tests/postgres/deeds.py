"""Every verb that writes, as a deed that a test can do, lose the answer of, and do again."""

from __future__ import annotations

from typing import Any, ClassVar

from conformance.steps import (
    ask,
    claim,
    draft,
    everything,
    finished,
    ids,
    joined,
    outcome,
    put,
    running,
    standing_still,
    stored,
)
from penstock.core.job import Job, State, Verdict
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Filter, QueueSettings, Report, WorkerInfo
from penstock.testing.clock import FakeClock
from servers.messages import Message, runs


class Deed:
    """One call that writes. Whatever became of it, ``check`` holds after ``again``."""

    sql: ClassVar[str] = ""
    """What is in its one statement; empty: it has several, and a COMMIT."""
    is_repeated: ClassVar[bool] = True
    """It may be done again without a look, and ``Observed`` does."""

    def commits(self, message: Message) -> bool:
        """It happens when this one arrives."""
        return runs(self.sql)(message) if self.sql else message.sql == "COMMIT"

    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        """Make what it needs."""

    async def act(self, engine: Engine) -> None:
        """Make the call."""
        raise NotImplementedError

    async def again(self, engine: Engine) -> None:
        """Do what the contract tells a caller who got no answer."""
        await self.act(engine)

    async def check(self, engine: Engine) -> None:
        """It happened once."""
        raise NotImplementedError


# --- in -----------------------------------------------------------------------------------------


class Enqueue(Deed):
    sql = "penstock.put("
    fields: ClassVar[dict[str, Any]] = {}

    async def act(self, engine: Engine) -> None:
        receipts = await engine.enqueue([draft(id, **self.fields) for id in ("a", "b")])
        assert [receipt.id for receipt in receipts] == ["a", "b"]

    async def check(self, engine: Engine) -> None:
        assert ids(await claim(engine, want=10)) == ["a", "b"]
        assert len(await everything(engine)) == 2


class EnqueueNamed(Enqueue):
    """With ids that a person gave, which the ledger keeps."""

    sql = "penstock.put("
    fields: ClassVar[dict[str, Any]] = {"remember": 60.0}


class EnqueueUnique(Deed):
    sql = "penstock.put("

    async def act(self, engine: Engine) -> None:
        (receipt,) = await engine.enqueue([draft("a", unique="key", remember=60.0)])
        assert receipt.id == "a"

    async def check(self, engine: Engine) -> None:
        (other,) = await engine.enqueue([draft("b", unique="key")])
        assert (other.id, other.created, other.because) == ("a", False, "unique")
        assert ids(await claim(engine, want=10)) == ["a"]


# --- work ---------------------------------------------------------------------------------------


class Join(Deed):
    async def act(self, engine: Engine) -> None:
        await engine.join(WorkerInfo(id="w", tasks=("work",)))

    async def check(self, engine: Engine) -> None:
        assert [(info.id, info.beat) for info in await engine.workers()] == [("w", 0)]


class Leave(Deed):
    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        self.worker = await joined(engine)

    async def act(self, engine: Engine) -> None:
        await engine.leave(self.worker)

    async def check(self, engine: Engine) -> None:
        assert await engine.workers() == []


class Beat(Deed):
    sql = "beat = beat + 1"

    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        self.worker = await joined(engine)

    async def act(self, engine: Engine) -> None:
        await engine.beat(self.worker)

    async def check(self, engine: Engine) -> None:
        """Twice is no harm: a beat is a counter that only has to move."""
        assert (await engine.workers())[0].beat in (1, 2)


class Exchange(Deed):
    """Settle one job and claim the next."""

    sql = "penstock.exchange"
    is_repeated = False
    end: ClassVar[dict[str, Any]] = {"kind": "succeeded", "result": b"1"}
    state: ClassVar[State] = State.SUCCEEDED
    failures: ClassVar[int] = 0

    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        self.job: Job = await running(engine)
        await put(engine, "next")

    async def act(self, engine: Engine) -> None:
        await self._turn(engine, want=1)

    async def again(self, engine: Engine) -> None:
        unheard_of = set(ids(await engine.held(str(self.job.worker)))) - {self.job.id}
        await self._turn(engine, want=1 - len(unheard_of))

    async def _turn(self, engine: Engine, want: int) -> None:
        outcomes = (outcome(self.job, **self.end),)
        given = await engine.exchange(ask(self.job.worker, want=want, outcomes=outcomes))
        assert given.verdicts == (Verdict.DONE,)

    async def check(self, engine: Engine) -> None:
        job, given = await stored(engine, self.job.id), await stored(engine, "next")
        assert (job.state, job.attempt, job.failures) == (self.state, 1, self.failures)
        assert (given.state, given.attempt, given.worker) == (State.RUNNING, 1, self.job.worker)


class ExchangeSlowly(Exchange):
    """The same with an outcome that takes several statements."""

    sql = ""
    end: ClassVar[dict[str, Any]] = {"kind": "retry", "delay": 60.0, "reason": "again"}
    state = State.SCHEDULED
    failures = 1


class Settle(Exchange):
    """Outcomes alone may be sent again without a look."""

    is_repeated = True

    async def act(self, engine: Engine) -> None:
        await self._turn(engine, want=0)

    async def again(self, engine: Engine) -> None:
        await self.act(engine)

    async def check(self, engine: Engine) -> None:
        job = await stored(engine, self.job.id)
        assert (job.state, job.attempt, job.failures) == (self.state, 1, self.failures)


class SettleSlowly(Settle):
    sql = ""
    end = ExchangeSlowly.end
    state = ExchangeSlowly.state
    failures = ExchangeSlowly.failures


class Progress(Deed):
    sql = "penstock.exchange"

    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        self.job = await running(engine)

    async def act(self, engine: Engine) -> None:
        report = Report(job=self.job.id, claim=1, fraction=0.5)
        await engine.exchange(Ask(worker=str(self.job.worker), reports=(report,)))

    async def check(self, engine: Engine) -> None:
        assert (await stored(engine, self.job.id)).progress == 0.5


# --- control ------------------------------------------------------------------------------------


class Cancel(Deed):
    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        await put(engine, "a", unique="key")

    async def act(self, engine: Engine) -> None:
        (told,) = await changes.cancel(engine, ["a"], "enough")
        assert told.state is State.CANCELLED

    async def check(self, engine: Engine) -> None:
        assert (await stored(engine, "a")).state is State.CANCELLED
        assert (await engine.enqueue([draft("b", unique="key")]))[0].created


class Retry(Deed):
    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        self.job = await finished(engine, "failed", queue="default")

    async def act(self, engine: Engine) -> None:
        (told,) = await changes.retry(engine, [self.job.id])
        assert told.state is State.READY

    async def check(self, engine: Engine) -> None:
        (again,) = await claim(engine, want=10)
        assert (again.id, again.attempt, again.failures) == (self.job.id, 2, 0)


class Purge(Deed):
    is_repeated = False

    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        await put(engine, "a", remember=60.0)

    async def act(self, engine: Engine) -> None:
        await engine.purge(Filter(), 10)

    async def check(self, engine: Engine) -> None:
        assert await everything(engine) == ()
        (receipt,) = await engine.enqueue([draft("a", remember=60.0)])
        assert not receipt.created


class SetQueue(Deed):
    async def act(self, engine: Engine) -> None:
        await engine.set_queue("mail", QueueSettings(paused=True, note="why"))

    async def check(self, engine: Engine) -> None:
        assert (await engine.queues())["mail"] == QueueSettings(paused=True, note="why")


# --- upkeep and lead ----------------------------------------------------------------------------


class Promote(Deed):
    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        await put(engine, "a", delay=5.0)
        await put(engine, "b", delay=50.0)
        clock.advance(10.0)

    async def act(self, engine: Engine) -> None:
        assert (await engine.promote(10)).due_in == 40.0

    async def check(self, engine: Engine) -> None:
        assert ids(await claim(engine, want=10)) == ["a"]


class Rescue(Deed):
    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        self.job = await running(engine)

    async def act(self, engine: Engine) -> None:
        await changes.rescue(engine, [standing_still(self.job)], 10)

    async def check(self, engine: Engine) -> None:
        job = await stored(engine, self.job.id)
        assert (job.state, job.crashes, job.rescues) == (State.READY, 1, 1)
        assert await engine.workers() == []


class Prune(Deed):
    async def prepare(self, engine: Engine, clock: FakeClock) -> None:
        await finished(engine, "succeeded", keep=50.0)
        await put(engine, "young")
        clock.advance(100.0)

    async def act(self, engine: Engine) -> None:
        await engine.prune(100)

    async def check(self, engine: Engine) -> None:
        assert ids(await everything(engine)) == ["young"]


class SetCell(Deed):
    """Who got no answer finds out by reading who was faster."""

    sql = "INTO penstock.cell"
    is_repeated = False

    async def act(self, engine: Engine) -> None:
        await engine.set_cell("breaker", b"open", 0)

    async def check(self, engine: Engine) -> None:
        assert (await engine.cell("breaker")).value == b"open"


DEEDS: tuple[type[Deed], ...] = (
    *(Enqueue, EnqueueNamed, EnqueueUnique),
    *(Join, Leave, Beat, Exchange, ExchangeSlowly, Settle, SettleSlowly, Progress),
    *(Cancel, Retry, Purge, SetQueue),
    *(Promote, Rescue, Prune, SetCell),
)
