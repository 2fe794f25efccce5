"""One term at a time, each with its own epoch: the leader's cell on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.engines.engine import Engine
from penstock.leader import election
from penstock.leader.election import CELL, Election

TTL = 10.0


async def present_term(engine: Engine) -> Any:
    """The term as any process sees it."""
    return await election.present_term(engine)


async def lead(engine: Engine, candidate: str) -> Any:
    """Stand for election as a process that has just started; return the term, or None."""
    one = Election(candidate, engine.clock, TTL)
    await one.stand(engine)
    return None if one.epoch is None else await present_term(engine)


async def test_there_is_no_leader_at_first(engine):
    assert await present_term(engine) is None


async def test_a_free_leadership_is_taken(engine):
    term = await lead(engine, "a")
    assert term.holder == "a"
    assert term.epoch >= 1
    assert 0 < term.left <= TTL


async def test_the_leader_is_known_from_any_handle(store):
    first, second = await store.open(), await store.open()
    term = await lead(first, "a")
    seen = await present_term(second)
    assert (seen.holder, seen.epoch) == ("a", term.epoch)
    assert 0 < seen.left <= TTL


async def test_another_candidate_is_refused(engine):
    await lead(engine, "a")
    assert await lead(engine, "b") is None
    assert (await present_term(engine)).holder == "a"


async def test_a_renewal_keeps_the_epoch_and_lasts_longer(engine, store):
    candidate = Election("a", engine.clock, TTL)
    await candidate.stand(engine)
    epoch = candidate.epoch
    store.clock.advance(6)
    await candidate.stand(engine)
    assert candidate.epoch == epoch
    store.clock.advance(6)
    assert await lead(engine, "b") is None
    assert (await present_term(engine)).epoch == epoch


async def test_a_leader_that_has_forgotten_its_term_keeps_the_epoch(engine):
    """As after a renewal whose reply was lost."""
    term = await lead(engine, "a")
    assert (await lead(engine, "a")).epoch == term.epoch


async def test_what_is_left_shrinks(engine, store):
    await lead(engine, "a")
    store.clock.advance(4)
    assert 5 < (await present_term(engine)).left <= 6


async def test_after_a_term_ran_out_another_leads_in_a_greater_epoch(engine, store):
    first = Election("a", engine.clock, TTL)
    await first.stand(engine)
    epoch = first.epoch
    store.clock.advance(TTL + 1)
    assert await present_term(engine) is None
    following = await lead(engine, "b")
    assert following.holder == "b"
    assert epoch is not None
    assert following.epoch > epoch
    await first.stand(engine)
    assert first.epoch is None


async def test_a_leader_that_comes_back_after_its_term_ran_out_has_a_new_term(engine, store):
    term = await lead(engine, "a")
    store.clock.advance(TTL + 1)
    assert (await lead(engine, "a")).epoch > term.epoch


async def test_epochs_grow_also_after_the_cell_was_forgotten(engine, store):
    term = await lead(engine, "a")
    store.clock.advance(TTL + 1)
    await engine.prune(10)
    assert (await engine.cell(CELL)).version == 0
    assert (await lead(engine, "b")).epoch > term.epoch


async def test_a_leader_that_resigns_lets_the_next_lead_at_once_in_a_greater_epoch(engine):
    first = Election("a", engine.clock, TTL)
    await first.stand(engine)
    epoch = first.epoch
    await first.resign(engine)
    assert await present_term(engine) is None
    assert (await lead(engine, "b")).epoch > epoch


async def test_a_late_resignation_does_not_end_the_term_of_another(engine, store):
    first = Election("a", engine.clock, TTL)
    await first.stand(engine)
    store.clock.advance(TTL + 1)
    await lead(engine, "b")
    await first.resign(engine)
    assert (await present_term(engine)).holder == "b"


async def test_of_many_candidates_at_once_one_leads(store):
    engines = [await store.open() for _ in range(6)]
    candidates = [Election(f"candidate-{number}", store.clock, TTL) for number in range(6)]
    await asyncio.gather(
        *(each.stand(engine) for each, engine in zip(candidates, engines, strict=True))
    )
    (leader,) = [each for each in candidates if each.epoch is not None]
    assert (await present_term(engines[0])).holder == leader.candidate


async def test_a_clock_that_goes_back_makes_no_term_longer(store, engine):
    """A dead leader is followed, not after the hours that the clock went back."""
    await lead(engine, "dead")
    store.clock.jump(-7200)
    assert (await lead(engine, "next")).holder == "next"


async def test_a_leader_whose_clock_went_back_keeps_its_term(store, engine):
    candidate = Election("a", engine.clock, TTL)
    await candidate.stand(engine)
    epoch = candidate.epoch
    store.clock.jump(-7200)
    await candidate.stand(engine)
    assert candidate.epoch == epoch
    assert await lead(engine, "b") is None


@pytest.mark.parametrize(
    ("value", "ttl"),
    [
        (b"", 10.0),
        (b"garbage", 10.0),
        (b"\xff\xfe\x00", 10.0),
        (b"[]", 10.0),
        (b'["b","soon"]', 10.0),
        (b'["\\ud800",1]', 10.0),
        (b'["b",1]', None),
    ],
)
async def test_what_no_candidate_can_have_written_is_no_term(engine, value, ttl):
    """An operator may write anything into a cell: the next candidate leads."""
    before = await lead(engine, "a")
    cell = await engine.cell(CELL)
    assert await engine.set_cell(CELL, value, cell.version, ttl)
    assert await present_term(engine) is None

    term = await lead(engine, "c")

    assert term.holder == "c"
    assert term.epoch > before.epoch


async def test_a_leader_whose_term_was_written_over_by_hand_leads_again(engine):
    candidate = Election("a", engine.clock, TTL)
    await candidate.stand(engine)
    epoch = candidate.epoch
    cell = await engine.cell(CELL)
    await engine.set_cell(CELL, b"garbage", cell.version)

    await candidate.stand(engine)

    assert (candidate.epoch or 0) > (epoch or 0) > 0
