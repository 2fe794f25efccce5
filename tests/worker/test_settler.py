"""Settling beside the claims: what has ended goes by itself while the next jobs are claimed."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from penstock.core.job import OutcomeKind, State, Verdict
from penstock.errors import EngineTimeout
from penstock.worker import settler
from penstock.worker.inflight import Hands
from worker.rig import soon, specs, unavailable
from worker.test_hands import take

MANY = 3 * settler.LEAST


def parallel(rig) -> None:
    """Let the store serve two calls at once, as far as the worker knows."""
    rig.main.traits = replace(rig.main.traits, is_parallel=True)


async def held_back(rig, count: int = MANY, **settings):
    """Jobs that run, all at once, until they may end; and what lets them."""
    go = asyncio.Event()
    runs: list[str] = []

    async def work() -> None:
        await go.wait()
        runs.append("run")

    ids = [await rig.put("work") for _ in range(count)]
    return rig.working(specs(work), concurrency=count, **settings), ids, go, runs


async def all_run(rig, ids) -> bool:
    jobs = await rig.engine.get(ids)
    return all(job is not None and job.state is State.RUNNING for job in jobs)


def settlements(rig):
    """The exchanges that settled and claimed nothing."""
    return [ask for ask in rig.main.asks if ask.outcomes and not ask.want and not ask.queues]


async def test_many_outcomes_go_by_themselves(rig):
    working, ids, go, runs = await held_back(rig)
    async with working:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        go.set()
        jobs = await rig.ended(*ids)
    assert {(job.state, job.attempt) for job in jobs} == {(State.SUCCEEDED, 1)}
    assert len(runs) == MANY
    assert sum(len(ask.outcomes) for ask in settlements(rig)) == MANY


async def test_few_go_with_the_next_claim(rig):
    working, ids, go, _ = await held_back(rig, settler.LEAST - 1)
    async with working:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        go.set()
        await rig.ended(*ids)
    assert settlements(rig) == []


async def test_a_store_that_does_one_thing_at_a_time_gets_one_call_at_a_time(rig):
    working, ids, go, _ = await held_back(rig)
    async with working:
        await soon(rig.until(lambda: all_run(rig, ids)))
        go.set()
        await rig.ended(*ids)
    assert settlements(rig) == []


async def test_what_has_ended_is_settled_while_a_claim_is_under_way(rig):
    working, ids, go, _ = await held_back(rig)
    async with working:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        gate = rig.main.block("exchange")
        go.set()
        await soon(gate.reached.wait())
        await rig.ended(*ids)
        gate.open()
        later = await rig.put("work")
        (job,) = await rig.ended(later)
    assert job.state is State.SUCCEEDED


def hold_settlement(rig) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the next exchange that only settles wait; when it is reached, and what lets it go on."""
    is_reached, is_free = asyncio.Event(), asyncio.Event()
    inner = rig.main.exchange

    async def exchange(ask):
        if ask.outcomes and not ask.queues:
            is_reached.set()
            await is_free.wait()
        return await inner(ask)

    rig.main.exchange = exchange
    return is_reached, is_free


def note_calls(rig) -> list[str]:
    """What the worker asks the store for: jobs, or to be woken when there are any."""
    exchange, wait, calls = rig.main.exchange, rig.main.wait, []

    async def claims(ask):
        if ask.want:
            calls.append("claim")
        return await exchange(ask)

    async def waits(ask, timeout):
        calls.append("wait")
        await wait(ask, timeout)

    rig.main.exchange, rig.main.wait = claims, waits
    return calls


async def test_what_comes_while_it_settles_is_claimed_meanwhile(rig):
    """A job that came just after the last claim waits for no settlement."""
    later: list[str] = []

    async def work() -> None: ...

    async with rig.working(specs(work), concurrency=2 * MANY):
        parallel(rig)
        is_reached, is_free = hold_settlement(rig)
        inner = rig.main.exchange

        async def exchange(ask):
            reply = await inner(ask)
            if reply.jobs and not later:
                later.append(await rig.put("work"))
            return reply

        rig.main.exchange = exchange
        ids = await rig.put_all("work", MANY)
        await soon(is_reached.wait())
        await rig.in_state(later[0], State.RUNNING)
        assert await all_run(rig, ids)
        is_free.set()
        await rig.ended(*later, *ids)


async def test_when_it_has_settled_the_next_jobs_are_claimed_without_a_look(rig):
    async def work() -> None: ...

    async with rig.working(specs(work), concurrency=2 * MANY):
        parallel(rig)
        is_reached, is_free = hold_settlement(rig)
        ids = await rig.put_all("work", MANY)
        await soon(is_reached.wait())
        await rig.clock.settle()
        calls = note_calls(rig)
        later = await rig.put("work")
        is_free.set()
        await rig.ended(later, *ids)
    assert calls[0] == "claim"


async def test_nothing_is_sent_twice_while_it_is_under_way(rig):
    """The worker stops and claims no more: what ends then is left to whoever settles already."""
    gates = [asyncio.Event(), asyncio.Event()]

    async def work(half: int) -> None:
        await gates[half].wait()

    ids = [await rig.put("work", b'{"half": %d}' % (each % 2)) for each in range(2 * MANY)]
    sent: list[str] = []
    under_way: list[asyncio.Event] = []
    is_reached, are_free = asyncio.Event(), asyncio.Event()

    async def exchange(ask):
        sent.extend(outcome.job for outcome in ask.outcomes)
        if ask.outcomes and not are_free.is_set():
            under_way.append(is_free := asyncio.Event())
            is_reached.set()
            await is_free.wait()
        return await inner(ask)

    async with rig.working(specs(work), concurrency=2 * MANY) as worker:
        parallel(rig)
        inner = rig.main.exchange
        await soon(rig.until(lambda: all_run(rig, ids)))
        rig.main.exchange = exchange
        gates[0].set()
        await soon(is_reached.wait())
        worker.stop()
        gates[1].set()
        await rig.clock.settle()
        under_way[0].set()
        await rig.clock.settle()
        are_free.set()
        for is_free in under_way:
            is_free.set()
        await rig.meanwhile(rig.ended(*ids))
    assert sorted(sent) == sorted(ids)


def cut_settlement(rig, error, when) -> list[object]:
    """Let the next exchange that only settles fail, before it happened or after; tells when."""
    inner = rig.main.exchange
    cuts: list[object] = []

    async def exchange(ask):
        if ask.outcomes and not ask.queues and not cuts:
            cuts.append(ask)
            if when == "after":
                await inner(ask)
            raise error
        return await inner(ask)

    rig.main.exchange = exchange
    return cuts


@pytest.mark.parametrize("error", [unavailable(), EngineTimeout("memory", "no answer")])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_reply_is_no_reason_to_ask_what_is_held(rig, when, error):
    """Nothing was claimed: the outcomes go again, and nothing runs twice."""
    working, ids, go, runs = await held_back(rig)
    async with working:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        cuts = cut_settlement(rig, error, when)
        go.set()
        jobs = await rig.meanwhile(rig.ended(*ids))
    assert len(cuts) == 1
    assert {(job.state, job.attempt) for job in jobs} == {(State.SUCCEEDED, 1)}
    assert len(runs) == MANY
    assert "held" not in rig.main.verbs


async def test_a_lease_that_is_lost_meanwhile_drops_everything(rig):
    working, ids, go, _ = await held_back(rig, prefetch=0)
    async with working as worker:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        name = worker.id
        await rig.bury(name)
        go.set()

        async def is_renamed() -> bool:
            return any(info.id != name for info in await rig.engine.workers())

        await rig.meanwhile(rig.until(is_renamed))
        settled = await rig.engine.get(ids)
    # Every one belongs to others now, for it was in a crash; none was settled by the old name.
    assert all(job is not None and job.worker != name for job in settled)
    assert {job.state for job in settled if job} <= {State.READY, State.RUNNING, State.SUCCEEDED}


async def test_what_cannot_be_stored_fails_alone(rig):
    working, ids, go, _ = await held_back(rig)
    bad = ids[7]
    async with working:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        rig.main.refuse(
            lambda item: getattr(item, "job", "") == bad and item.kind is OutcomeKind.SUCCEEDED
        )
        go.set()
        jobs = await rig.meanwhile(rig.ended(*ids))
    assert [job.id for job in jobs if job.state is State.FAILED] == [bad]


def never_settling(rig, error) -> list[object]:
    """Let every exchange that settles something fail; tells which."""
    inner = rig.main.exchange
    cuts: list[object] = []

    async def exchange(ask):
        if ask.outcomes:
            cuts.append(ask)
            raise error
        return await inner(ask)

    rig.main.exchange = exchange
    return cuts


async def test_a_store_that_settles_nothing_is_not_asked_all_the_time(rig):
    working, ids, go, _ = await held_back(rig)
    async with working:
        parallel(rig)
        await soon(rig.until(lambda: all_run(rig, ids)))
        inner = rig.main.exchange
        cuts = never_settling(rig, unavailable())
        go.set()
        for _ in range(500):
            await asyncio.sleep(0)
        assert 1 <= len(cuts) < 10
        rig.main.exchange = inner
        await rig.meanwhile(rig.ended(*ids))


async def test_a_fault_that_is_no_stores_ends_the_run(rig):
    working, ids, go, _ = await held_back(rig)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with working:
            parallel(rig)
            await soon(rig.until(lambda: all_run(rig, ids)))
            never_settling(rig, ZeroDivisionError("a bug"))
            go.set()
            await asyncio.Event().wait()
    assert caught.group_contains(ZeroDivisionError)


# --- the hands ----------------------------------------------------------------------------------


def hands_with(*ids: str) -> Hands:
    hands = Hands()
    for id in ids:
        attempt = take(hands, id)
        hands.settle(attempt, attempt.outcome(OutcomeKind.SUCCEEDED))
    return hands


def test_what_is_set_apart_is_sent_by_nobody_else_and_is_not_forgotten():
    hands = hands_with("a", "b", "c")
    apart = hands.set_apart(2)
    assert [outcome.job for outcome in apart] == ["a", "b"]
    assert [outcome.job for outcome in hands.outgoing(10)] == ["c"]
    held = [take(Hands(), id).job for id in "abc"]
    assert hands.compare(held).unknown == []
    hands.answered(apart, [Verdict.DONE, Verdict.LATER])
    assert hands.outcomes_apart == 1
    hands.bring_back()
    assert [outcome.job for outcome in hands.outgoing(10)] == ["b", "c"]


def test_hands_are_not_empty_before_the_last_answer():
    hands = hands_with("a")
    apart = hands.set_apart(10)
    assert not hands.is_empty
    hands.answered(apart, [Verdict.DONE])
    assert hands.is_empty


def test_what_the_store_is_being_told_of_is_not_set_apart():
    """The two calls would be in each other's way."""
    hands = hands_with("a", "b")
    (first, _) = hands.outgoing(10)
    apart = hands.set_apart(10, {(first.job, first.attempt)})
    assert [outcome.job for outcome in apart] == ["b"]


def test_a_lost_lease_forgets_what_is_apart():
    hands = hands_with("a")
    hands.set_apart(10)
    hands.clear()
    assert hands.is_empty
