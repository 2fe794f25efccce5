"""The observed engine: what it repeats, what it ends, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conformance.steps import created, known
from penstock.core import lifecycle
from penstock.core.job import Draft, ErrorRecord, Hold, Job, Outcome, OutcomeKind, State, Verdict
from penstock.engines import changes, publisher
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.observed import Observed
from penstock.engines.publisher import ENDINGS
from penstock.engines.records import (
    Ask,
    Filter,
    News,
    QueueSettings,
    Receipt,
    Sighting,
    WorkerInfo,
)
from penstock.engines.waiting import wait_for_results
from penstock.errors import (
    EngineBusy,
    EngineClosed,
    EngineFull,
    EngineTimeout,
    EngineUnavailable,
    LeaseLost,
)
from penstock.events import (
    AttemptEnded,
    Bus,
    Cancelled,
    Claimed,
    Crashed,
    Enqueued,
    Event,
    Failed,
    Faulted,
    LeaseWasLost,
    Released,
    Rescued,
    Retried,
    Revived,
    Stale,
    Succeeded,
    WorkerJoined,
    WorkerLeft,
)
from penstock.testing import Faulty
from penstock.testing.faulty import VERBS


class Wanted(Bus):
    """A bus that keeps everything it was asked to carry."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Event] = []
        self.subscribe(None, self.heard.append)

    def take(self, *kinds: type[Event]) -> list[Any]:
        """What was heard of some kinds, or of all; it is then forgotten."""
        heard = [event for event in self.heard if not kinds or isinstance(event, kinds)]
        self.heard.clear()
        return heard


@pytest.fixture
def bus():
    return Wanted()


@pytest.fixture
def faulty(clock):
    return Faulty(MemoryEngine(MemoryStore(), clock))


@pytest.fixture
async def engine(faulty, bus):
    engine = Observed(faulty, bus)
    await engine.open()
    faulty.calls.clear()
    yield engine
    faulty.clear()
    await engine.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def patiently(clock, call: Awaitable[Any]) -> Any:
    """Let time pass until the call has ended."""
    calling = asyncio.ensure_future(call)
    while not calling.done():
        await clock.elapse(1)
    return await calling


def draft(id: str, **fields: Any) -> Draft:
    return Draft(id=id, task=fields.pop("task", "work"), **fields)


async def claim(engine: Observed, *ids: str, worker: str = "w", **fields: Any) -> list[Job]:
    """Enqueue jobs and claim them for a worker that has just joined."""
    await engine.join(WorkerInfo(id=worker, tasks=("work",)))
    await engine.enqueue([draft(id, **fields) for id in ids])
    return list((await engine.exchange(wanting(worker, len(ids)))).jobs)


def wanting(worker: str = "w", want: int = 1, **more: Any) -> Ask:
    return Ask(worker=worker, queues=("default",), want=want, slots=want, **more)


def settling(kind: OutcomeKind, job: str = "a", claim: int = 1, **fields: Any) -> Ask:
    return Ask(worker="w", outcomes=(Outcome(job=job, claim=claim, kind=kind, **fields),))


# --- what is repeated ---------------------------------------------------------------------------

CALLS: dict[str, Callable[[Observed], Awaitable[Any]]] = {
    "open": lambda engine: engine.open(),
    "migrate": lambda engine: engine.migrate(),
    "enqueue": lambda engine: engine.enqueue([draft("new")]),
    "join": lambda engine: engine.join(WorkerInfo(id="w")),
    "leave": lambda engine: engine.leave("w"),
    "beat": lambda engine: engine.beat("w"),
    "exchange": lambda engine: engine.exchange(Ask(worker="w")),
    "held": lambda engine: engine.held("w"),
    "rewrite": lambda engine: engine.rewrite([]),
    "set_queue": lambda engine: engine.set_queue("default", QueueSettings(paused=True)),
    "queues": lambda engine: engine.queues(),
    "promote": lambda engine: engine.promote(10),
    "end_leases": lambda engine: engine.end_leases([Sighting("w", 0)]),
    "prune": lambda engine: engine.prune(10),
    "repair": lambda engine: engine.repair(10),
    "cells": lambda engine: engine.cells("", None, 1),
    "cell": lambda engine: engine.cell("breaker"),
    "get": lambda engine: engine.get(["a"]),
    "find": lambda engine: engine.find(Filter(), None, 10),
    "running": lambda engine: engine.running(),
    "counts": lambda engine: engine.counts(Filter()),
    "workers": lambda engine: engine.workers(),
    "version": lambda engine: engine.version(News.CHANGED),
    "listen": lambda engine: engine.listen(News.CHANGED, 0, 1),
}

ONCE: dict[str, Callable[[Observed], Awaitable[Any]]] = {
    "close": lambda engine: engine.close(),
    "exchange": lambda engine: engine.exchange(wanting()),
    "purge": lambda engine: engine.purge(Filter(), 10),
    "set_cell": lambda engine: engine.set_cell("breaker", b"open", 0),
}


def test_it_is_decided_of_every_verb_whether_it_is_repeated():
    assert CALLS.keys() | ONCE.keys() == VERBS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", CALLS)
async def test_a_verb_that_may_be_repeated_gets_over_a_fault(engine, faulty, clock, verb, when):
    await claim(engine, "a")
    faulty.calls.clear()
    faulty.fail(verb, when=when)

    await patiently(clock, CALLS[verb](engine))

    assert faulty.verbs == [verb, verb]


@pytest.mark.parametrize("verb", ONCE)
async def test_a_verb_that_must_not_be_repeated_fails_at_once(engine, faulty, verb):
    await claim(engine, "a")
    faulty.calls.clear()
    faulty.fail(verb, when="after")

    with pytest.raises(EngineUnavailable):
        await ONCE[verb](engine)

    assert faulty.verbs == [verb]


async def test_waits_between_tries_double_up_to_a_bound_and_are_told(faulty, bus, clock):
    engine = Observed(faulty, bus, tries=6, backoff=1, max_backoff=4)
    faulty.fail("get", EngineBusy("memory", "a test"), times=None)

    with pytest.raises(EngineBusy):
        await patiently(clock, engine.get([]))

    faults = bus.take(Faulted)
    assert [fault.tried for fault in faults] == [1, 2, 3, 4, 5, 6]
    assert faults[-1].delay is None
    for fault, longest in zip(faults, [1, 2, 4, 4, 4], strict=False):
        assert longest / 2 <= fault.delay <= longest
    assert (faults[0].verb, faults[0].kind) == ("get", "EngineBusy")
    assert faults[0].error.startswith("memory is locked by another process: a test")
    assert len(faulty.calls) == 6
    await engine.close()


async def test_an_error_that_will_not_pass_is_not_repeated(engine, faulty):
    faulty.fail("enqueue", EngineFull("memory", "a test"))

    with pytest.raises(EngineFull):
        await engine.enqueue([draft("a")])

    assert faulty.verbs == ["enqueue"]


async def test_a_call_that_is_cancelled_between_two_tries_ends(engine, faulty, clock):
    faulty.fail("get", times=None)
    calling = asyncio.create_task(engine.get([]))
    await clock.asleep(2)  # the backoff, and the watch over time limits

    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_sleeping_verb_is_repeated_only_for_the_time_that_is_left(faulty, bus, clock):
    engine = Observed(faulty, bus, backoff=10, max_backoff=10)
    await engine.open()
    start = clock.monotonic()
    faulty.calls.clear()
    faulty.fail("listen", when="before")

    await patiently(clock, engine.listen(News.CHANGED, await engine.version(News.CHANGED), 30))

    first, second = (call.args[-1] for call in faulty.calls if call.verb == "listen")
    assert first == 30
    assert 20 <= second <= 25
    assert clock.monotonic() - start <= 31
    await engine.close()


# --- receipts after a lost reply ----------------------------------------------------------------


async def test_a_job_that_a_lost_try_stored_counts_as_created(engine, faulty, bus, clock):
    faulty.fail("enqueue", when="after")

    receipts = await patiently(clock, engine.enqueue([draft("a"), draft("a"), draft("b")]))

    assert receipts == [
        created("a"),
        known("a"),
        created("b"),
    ]
    assert [event.job for event in bus.take(Enqueued)] == ["a", "b"]


async def test_after_a_lost_reply_an_id_that_a_person_chose_stays_known_already(
    engine, faulty, clock
):
    faulty.fail("enqueue", when="after")

    (receipt,) = await patiently(clock, engine.enqueue([draft("a", remember=60.0)]))

    assert receipt == known("a")


async def test_after_a_lost_reply_a_taken_unique_key_is_still_taken(engine, faulty, clock):
    await engine.enqueue([draft("a", unique="welcome")])
    faulty.fail("enqueue", when="after")

    (receipt,) = await patiently(clock, engine.enqueue([draft("b", unique="welcome")]))

    assert receipt == Receipt("a", created=False, because="unique")


async def test_a_generated_id_that_is_known_without_a_fault_is_known_already(engine):
    await engine.enqueue([draft("a")])

    assert await engine.enqueue([draft("a")]) == [known("a")]


# --- time limits --------------------------------------------------------------------------------


async def test_a_call_that_takes_too_long_ends_and_may_have_happened(engine, faulty, clock):
    await claim(engine, "a")
    faulty.block("set_cell", when="after")
    start = clock.monotonic()

    with pytest.raises(EngineTimeout) as error:
        await patiently(clock, engine.set_cell("breaker", b"open", 0))

    assert 10 <= clock.monotonic() - start <= 14
    assert str(error.value) == (
        "memory did not answer in time: set_cell took more than 10 s; the call may have happened"
    )
    assert (await engine.cell("breaker")).value == b"open"


async def test_a_call_that_begins_just_before_a_look_has_all_its_time(engine, faulty, clock):
    await engine.get([])  # the looks begin now, 2.5 s apart
    await clock.elapse(2.4)
    gate = faulty.block("set_cell")
    calling = asyncio.create_task(engine.set_cell("breaker", b"open", 0))
    await gate.reached.wait()

    await clock.elapse(9.9)
    gate.open()

    assert await calling is not None


async def test_a_call_that_took_too_long_is_repeated_if_it_may_be(engine, faulty, bus, clock):
    faulty.block("enqueue", when="after")

    receipts = await patiently(clock, engine.enqueue([draft("a")]))

    assert receipts == [created("a")]
    (fault,) = bus.take(Faulted)
    assert (fault.verb, fault.kind, fault.tried) == ("enqueue", "EngineTimeout", 1)


async def test_a_leap_of_the_clock_ends_no_call(engine, faulty, clock):
    """A process that was stopped for an hour has a reply waiting for it."""
    gate = faulty.block("set_cell")
    calling = asyncio.create_task(engine.set_cell("breaker", b"open", 0))
    await gate.reached.wait()

    clock.advance(3600)
    await clock.settle()
    gate.open()

    assert (await calling) is not None


async def test_a_leap_of_the_clock_ends_no_sleeping_call_in_error(engine, clock):
    await engine.enqueue([draft("a", delay=7200.0)])
    waiting = [
        asyncio.create_task(engine.listen(News.CHANGED, await engine.version(News.CHANGED), 60)),
        asyncio.create_task(wait_for_results(engine, ["a"], 60)),
    ]
    await clock.asleep(3)  # and the watch over time limits

    clock.advance(3600)

    await asyncio.gather(*waiting)


async def test_a_sleeping_verb_may_sleep_beyond_the_time_limit_of_others(engine, clock):
    await engine.enqueue([draft("a", delay=3600)])
    start = clock.monotonic()

    assert await patiently(clock, wait_for_results(engine, ["a"], 300)) == {}

    assert 300 <= clock.monotonic() - start <= 302


async def test_a_sleeping_verb_that_never_wakes_is_ended(faulty, bus, clock):
    engine = Observed(faulty, bus, timeout=8, tries=1)
    faulty.block("listen")
    start = clock.monotonic()

    with pytest.raises(EngineTimeout):
        await patiently(clock, engine.listen(News.CHANGED, 0, 20))

    assert 28 <= clock.monotonic() - start <= 32
    await engine.close()


async def test_a_time_out_inside_the_engine_is_left_as_it_is(engine, faulty):
    faulty.fail("get", TimeoutError("its own"))

    with pytest.raises(TimeoutError, match="its own"):
        await engine.get([])


async def test_cancelling_a_call_is_no_time_out(engine, faulty, bus):
    gate = faulty.block("get")
    calling = asyncio.create_task(engine.get([]))
    await gate.reached.wait()

    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert bus.take(Faulted) == []


async def test_the_watch_over_time_limits_ends_after_the_last_call(faulty, bus, clock):
    engine = Observed(faulty, bus)
    await engine.open()
    await engine.get([])
    await clock.elapse(10)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_closed_handle_starts_nothing_and_can_be_opened_again(faulty, bus, clock):
    engine = Observed(faulty, bus, tries=1)
    await engine.open()
    await engine.get([])
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.get([])
    assert asyncio.all_tasks() == {asyncio.current_task()}

    await engine.open()
    faulty.block("get")
    with pytest.raises(EngineTimeout):
        await patiently(clock, engine.get([]))
    await engine.close()


# --- what is told of jobs -----------------------------------------------------------------------


async def test_a_new_job_is_told_and_a_known_one_is_not(engine, bus, clock):
    await engine.enqueue([draft("a", key="user-7", correlation_id="c", queue="mail", priority=0)])
    await engine.enqueue([draft("a")])

    assert bus.take() == [
        Enqueued(
            at=clock.now(),
            job="a",
            task="work",
            queue="mail",
            correlation_id="c",
            priority=0,
            key="user-7",
        )
    ]


async def test_a_claim_is_told_with_how_long_the_job_waited(engine, bus, clock):
    await engine.join(WorkerInfo(id="w", tasks=("work",)))
    await engine.enqueue([draft("a", delay=60.0, correlation_id="c")])
    clock.advance(90)
    bus.take()

    await engine.exchange(wanting())

    (event,) = bus.take()
    assert event == Claimed(
        at=clock.now(),
        job="a",
        task="work",
        queue="default",
        correlation_id="c",
        attempt=1,
        claim=1,
        worker="w",
        waited=event.waited,
        starts=True,
    )
    assert event.waited == pytest.approx(30)


async def test_a_success_is_told_with_all_that_the_claim_said(engine, bus, clock):
    await claim(engine, "a", correlation_id="c")
    clock.advance(2.5)
    bus.take()

    await engine.exchange(settling(OutcomeKind.SUCCEEDED))

    assert bus.take() == [
        Succeeded(
            at=clock.now(),
            job="a",
            task="work",
            queue="default",
            correlation_id="c",
            attempt=1,
            claim=1,
            worker="w",
            duration=2.5,
        )
    ]


def test_every_kind_of_outcome_has_its_event():
    assert ENDINGS.keys() == set(OutcomeKind)
    assert len(set(ENDINGS.values())) == len(OutcomeKind)


@pytest.mark.parametrize("kind", OutcomeKind)
async def test_each_outcome_is_told_as_its_own_event(engine, bus, kind):
    await claim(engine, "a")
    bus.take()

    await engine.exchange(settling(kind, reason="because"))

    (event,) = bus.take()
    assert type(event) is ENDINGS[kind]
    assert (event.job, event.task, event.reason) == ("a", "work", "because")


async def test_a_retry_is_told_with_its_error_and_delay(engine, bus):
    await claim(engine, "a")
    error = ErrorRecord(attempt=1, at=0.0, kind="ValueError", message="no such user")

    await engine.exchange(settling(OutcomeKind.RETRY, error=error, delay=30.0))

    (event,) = bus.take(Retried)
    assert (event.error, event.delay) == ("ValueError: no such user", 30.0)


async def test_a_release_is_told_with_its_hold(engine, bus):
    await claim(engine, "a")

    await engine.exchange(
        settling(OutcomeKind.RELEASED, hold=Hold.UNKNOWN_TASK, hold_cause="other")
    )

    (event,) = bus.take(Released)
    assert event.hold == "unknown_task"


async def test_an_outcome_from_outside_the_fence_is_told_as_stale_only(engine, bus):
    await claim(engine, "a")
    bus.take()

    answer = await engine.exchange(settling(OutcomeKind.SUCCEEDED, claim=7))

    assert answer.verdicts == (Verdict.STALE,)
    (event,) = bus.take()
    assert isinstance(event, Stale)
    assert (event.job, event.claim, event.worker, event.outcome) == ("a", 7, "w", "succeeded")


async def test_a_claim_whose_reply_was_lost_is_told_once_when_it_is_found(engine, faulty, bus):
    await engine.join(WorkerInfo(id="w", tasks=("work",)))
    await engine.enqueue([draft("a")])
    faulty.fail("exchange", when="after")
    with pytest.raises(EngineUnavailable):
        await engine.exchange(wanting())
    assert bus.take(Claimed) == []

    await engine.held("w")
    await engine.held("w")

    assert [event.job for event in bus.take(Claimed)] == ["a"]


async def test_an_outcome_whose_first_reply_was_lost_is_told_once(engine, faulty, bus, clock):
    await claim(engine, "a")
    faulty.fail("exchange", when="after")

    await patiently(clock, engine.exchange(settling(OutcomeKind.SUCCEEDED)))

    assert [event.task for event in bus.take(Succeeded)] == ["work"]


async def test_an_outcome_of_a_job_that_another_handle_claimed_is_told_without_its_task(
    engine, bus, faulty
):
    await claim(engine, "a")
    other = Observed(faulty, bus)
    bus.take()

    await other.exchange(settling(OutcomeKind.SUCCEEDED))

    (event,) = bus.take()
    assert (event.job, event.task, event.queue, event.duration) == ("a", None, None, None)
    await other.close()


async def test_a_cancelled_job_is_told_when_it_is_cancelled(engine, bus, clock):
    await claim(engine, "running")
    await engine.enqueue([draft("waiting")])
    bus.take()

    await changes.cancel(engine, ["running", "waiting", "unknown"], "enough")
    assert bus.take() == [
        Cancelled(at=clock.now(), job="waiting", task="work", queue="default", reason="enough")
    ]
    await changes.cancel(engine, ["running", "waiting"], "enough")
    assert bus.take() == []

    await engine.exchange(settling(OutcomeKind.CANCELLED, "running", reason="enough"))
    (event,) = bus.take()
    assert isinstance(event, Cancelled)
    assert (event.job, event.attempt) == ("running", 1)


@pytest.mark.parametrize("kind", sorted(lifecycle.WAITS_AGAIN))
async def test_an_attempt_that_was_overruled_is_told_as_cancelled(engine, bus, kind):
    await claim(engine, "a")
    await changes.cancel(engine, ["a"], "enough")
    bus.take()

    await engine.exchange(settling(kind, delay=30.0, hold=Hold.BREAKER, reason="not now"))

    (event,) = bus.take()
    assert type(event) is Cancelled
    assert (event.reason, event.delay, event.hold) == ("enough", 0.0, None)


async def test_a_crash_that_its_worker_survived_is_told_with_its_error(engine, bus):
    await claim(engine, "a")
    error = ErrorRecord(attempt=1, at=0.0, kind="crash", message="killed by SIGKILL")
    bus.take()

    await engine.exchange(settling(OutcomeKind.CRASHED, error=error, reason="killed"))

    (event,) = bus.take()
    assert type(event) is Crashed
    assert (event.reason, event.error) == ("killed", "crash: killed by SIGKILL")


async def test_a_crash_after_which_the_job_is_given_up_is_told_as_its_failure(engine, bus):
    await claim(engine, "a", at_most_once=True)
    bus.take()

    await engine.exchange(settling(OutcomeKind.CRASHED, reason="killed"))

    (event,) = bus.take()
    assert type(event) is Failed
    assert (event.attempt, event.reason) == (1, "may have run")


async def test_a_job_that_is_sent_back_is_told(engine, bus, clock):
    await engine.enqueue([draft("a"), draft("b")])
    await changes.cancel(engine, ["a"], "enough")
    bus.take()

    await changes.retry(engine, ["a", "b"])

    assert bus.take() == [Revived(at=clock.now(), job="a", task="work", queue="default")]


async def test_a_rescued_job_is_told_with_the_worker_that_died(engine, bus, clock):
    await claim(engine, "a", correlation_id="c")
    bus.take()

    await changes.rescue(engine, [Sighting("w", 0)], 10)

    assert bus.take() == [
        Rescued(
            at=clock.now(),
            job="a",
            task="work",
            queue="default",
            correlation_id="c",
            attempt=1,
            worker="w",
            crashes=1,
            state=State.READY,
        )
    ]


async def test_a_job_that_was_rescued_before_its_start_is_told_without_an_older_failure(
    engine, bus
):
    await claim(engine, "a")
    error = ErrorRecord(attempt=1, at=0.0, kind="ValueError", message="no", worker="w")
    await engine.exchange(settling(OutcomeKind.RETRY, error=error))
    await engine.exchange(Ask(worker="w", queues=("default",), want=1))
    bus.take()

    await changes.rescue(engine, [Sighting("w", 0)], 10)

    (event,) = bus.take()
    assert isinstance(event, Rescued)
    assert (event.attempt, event.worker, event.crashes) == (1, None, 0)


async def test_a_job_that_a_rescue_ends_is_told_as_failed_too(engine, bus):
    await claim(engine, "a", at_most_once=True)
    bus.take()

    await changes.rescue(engine, [Sighting("w", 0)], 10)

    rescued, failed = bus.take()
    assert (type(rescued), rescued.state) == (Rescued, "failed")
    assert type(failed) is Failed
    assert (failed.job, failed.task, failed.attempt) == ("a", "work", 1)
    assert failed.reason == "may have run"
    assert failed.error == "crash: the worker died during this attempt"


async def test_what_is_remembered_of_claims_is_bounded(engine, bus, monkeypatch):
    monkeypatch.setattr(publisher, "CLAIMS_KEPT", 2)
    await claim(engine, "a", "b", "c")
    bus.take()

    for id in ("a", "b", "c"):
        await engine.exchange(settling(OutcomeKind.SUCCEEDED, id))

    assert [event.task for event in bus.take()] == [None, "work", "work"]


# --- what is told of processes ------------------------------------------------------------------


async def test_workers_that_come_and_go_are_told(engine, bus, clock):
    info = WorkerInfo(id="w", queues=("mail",), tasks=("work",), host="box", pid=7, slots=3)
    await engine.join(info)
    await engine.leave("w")

    assert bus.take() == [
        WorkerJoined(
            at=clock.now(),
            worker="w",
            queues=("mail",),
            tasks=("work",),
            host="box",
            pid=7,
            slots=3,
        ),
        WorkerLeft(at=clock.now(), worker="w"),
    ]


@pytest.mark.parametrize("verb", ["beat", "held", "exchange"])
async def test_a_lost_lease_is_told_and_is_still_an_error(engine, bus, clock, verb):
    with pytest.raises(LeaseLost):
        await CALLS[verb](engine)

    assert bus.take() == [LeaseWasLost(at=clock.now(), worker="w", verb=verb)]


async def test_a_listener_that_fails_does_not_fail_the_call(engine, bus, caplog):
    def broken(event: Event) -> None:
        raise ValueError("broken")

    bus.subscribe(None, broken)

    assert (await engine.enqueue([draft("a")]))[0].created
    assert len(caplog.records) == 1


async def test_no_event_is_built_that_nobody_wants(clock):
    class Strict(Bus):
        def publish(self, event: Event) -> None:
            assert self.wants(type(event))
            super().publish(event)

    bus = Strict()
    heard: list[Event] = []
    bus.subscribe(Claimed, heard.append)
    engine = Observed(MemoryEngine(MemoryStore(), clock), bus)
    await engine.open()

    await claim(engine, "a", "b", "c")
    await engine.exchange(settling(OutcomeKind.SUCCEEDED))
    await engine.exchange(settling(OutcomeKind.SUCCEEDED, claim=9))
    await changes.cancel(engine, ["b"], "enough")
    await changes.rescue(engine, [Sighting("w", 0)], 10)
    await changes.retry(engine, ["b"])
    await engine.leave("w")
    with pytest.raises(LeaseLost):
        await engine.beat("w")

    assert {type(event) for event in heard} == {Claimed}
    assert not bus.wants(AttemptEnded)
    await engine.close()


# --- a faithful engine --------------------------------------------------------------------------


async def test_traits_and_clock_are_those_of_the_engine_inside(engine, faulty):
    assert engine.traits is faulty.traits
    assert engine.clock is faulty.clock
