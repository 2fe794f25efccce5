"""``lead``, ``resign``, ``leader``: one term at a time, each with its own epoch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.engines.engine import Engine
from penstock.engines.records import Sighting, WorkerInfo

TTL = 10.0


async def lead(engine: Engine, candidate: str, ttl: float) -> Any:
    """Stand for election; return the term, or None."""
    leadership = await engine.lead(candidate, ttl)
    return leadership.term


async def test_a_candidate_reads_the_beats_of_all_workers(engine):
    for id in ("v", "w"):
        await engine.join(WorkerInfo(id=id, queues=("default",), tasks=("work",)))
    await engine.beat("w")

    for candidate in ("a", "b"):
        leadership = await engine.lead(candidate, TTL)
        assert sorted(leadership.beats, key=lambda seen: seen.worker) == [
            Sighting("v", 0),
            Sighting("w", 1),
        ]


async def test_nobody_leads_at_first(engine):
    assert await engine.leader() is None


async def test_a_free_leadership_is_taken(engine):
    term = await lead(engine, "a", TTL)
    assert term.holder == "a"
    assert term.epoch >= 1
    assert 0 < term.left <= TTL


async def test_the_leader_is_known_from_any_handle(store):
    first, second = await store.open(), await store.open()
    term = await lead(first, "a", TTL)
    seen = await second.leader()
    assert (seen.holder, seen.epoch) == ("a", term.epoch)
    assert 0 < seen.left <= TTL


async def test_another_candidate_is_refused(engine):
    term = await lead(engine, "a", TTL)
    assert await lead(engine, "b", TTL) is None
    assert (await engine.leader()).holder == term.holder


async def test_a_renewal_keeps_the_epoch_and_lasts_longer(engine, store):
    term = await lead(engine, "a", TTL)
    store.clock.advance(6)
    renewed = await lead(engine, "a", TTL)
    assert renewed.epoch == term.epoch
    store.clock.advance(6)
    assert await lead(engine, "b", TTL) is None
    assert (await engine.leader()).epoch == term.epoch


async def test_what_is_left_shrinks(engine, store):
    await lead(engine, "a", TTL)
    store.clock.advance(4)
    assert 5 < (await engine.leader()).left <= 6


async def test_a_term_that_ran_out_is_over(engine, store):
    await lead(engine, "a", TTL)
    store.clock.advance(TTL + 1)
    assert await engine.leader() is None


async def test_after_a_term_ran_out_another_leads_in_a_greater_epoch(engine, store):
    term = await lead(engine, "a", TTL)
    store.clock.advance(TTL + 1)
    following = await lead(engine, "b", TTL)
    assert following.holder == "b"
    assert following.epoch > term.epoch
    assert await lead(engine, "a", TTL) is None


async def test_who_comes_back_after_its_term_ran_out_has_a_new_term(engine, store):
    term = await lead(engine, "a", TTL)
    store.clock.advance(TTL + 1)
    assert (await lead(engine, "a", TTL)).epoch > term.epoch


async def test_who_resigns_lets_the_next_lead_at_once(engine):
    term = await lead(engine, "a", TTL)
    await engine.resign("a", term.epoch)
    assert await engine.leader() is None
    assert (await lead(engine, "b", TTL)).epoch > term.epoch


async def test_who_resigned_may_lead_again_in_a_greater_epoch(engine):
    term = await lead(engine, "a", TTL)
    await engine.resign("a", term.epoch)
    assert (await lead(engine, "a", TTL)).epoch > term.epoch


@pytest.mark.parametrize("holder, older", [("b", 0), ("a", 1), ("a", -1), ("b", 1)])
async def test_only_this_very_term_can_be_resigned(engine, holder, older):
    term = await lead(engine, "a", TTL)
    await engine.resign(holder, term.epoch - older)
    assert (await engine.leader()).holder == "a"


async def test_a_late_resignation_does_not_end_anothers_term(engine, store):
    term = await lead(engine, "a", TTL)
    store.clock.advance(TTL + 1)
    await lead(engine, "b", TTL)
    await engine.resign("a", term.epoch)
    assert (await engine.leader()).holder == "b"


async def test_resigning_twice_is_no_error(engine):
    term = await lead(engine, "a", TTL)
    await engine.resign("a", term.epoch)
    await engine.resign("a", term.epoch)


async def test_resigning_a_term_that_never_was_is_no_error(engine):
    await engine.resign("a", 7)
    assert (await lead(engine, "b", TTL)).holder == "b"


async def test_of_many_candidates_at_once_one_leads(store):
    engines = [await store.open() for _ in range(6)]
    terms = await asyncio.gather(
        *(lead(engine, f"candidate-{number}", TTL) for number, engine in enumerate(engines))
    )
    (term,) = [term for term in terms if term is not None]
    assert (await engines[0].leader()).holder == term.holder


async def test_a_clock_that_goes_back_makes_no_term_longer(store, engine):
    """A dead leader is followed after its ttl, not after the hours that the clock went back."""
    await lead(engine, "dead", TTL)
    store.clock.jump(-7200)
    assert (await engine.leader()).left <= TTL
    assert await lead(engine, "next", TTL) is None
    await store.clock.elapse(TTL + 0.1)
    term = await lead(engine, "next", TTL)
    assert (term.holder, (await engine.leader()).holder) == ("next", "next")


async def test_a_leader_whose_clock_went_back_keeps_its_term(store, engine):
    epoch = (await lead(engine, "a", TTL)).epoch
    store.clock.jump(-7200)
    assert (await lead(engine, "a", TTL)).epoch == epoch
    assert await lead(engine, "b", TTL) is None
