"""Who leads, and until when it may believe it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.engines.engine import Engine
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.errors import EngineUnavailable
from penstock.leader.election import Election, present_term
from penstock.testing import Faulty


async def stands(election: Election, engine: Engine) -> bool:
    """Stand for election; say whether it leads."""
    await election.stand(engine)
    return election.epoch is not None


@pytest.fixture
async def engine(clock):
    engine = Faulty(MemoryEngine(MemoryStore(), clock))
    await engine.open()
    yield engine
    await engine.close()


async def test_the_first_candidate_leads_and_the_second_does_not(engine, clock):
    first, second = Election("a", clock), Election("b", clock)

    assert await stands(first, engine)
    assert not await stands(second, engine)
    assert (first.is_trusted, second.is_trusted) == (True, False)
    assert (first.epoch is not None, second.epoch) == (True, None)


async def test_trust_ends_before_the_term_could(engine, clock):
    first, second = Election("a", clock), Election("b", clock)
    await first.stand(engine)

    clock.advance(7.9)
    assert first.is_trusted
    clock.advance(0.2)
    assert not first.is_trusted
    assert not await stands(second, engine)
    clock.advance(2)
    assert await stands(second, engine)
    assert second.epoch is not None


async def test_trust_counts_from_when_the_renewal_was_asked_for(engine, clock):
    election = Election("a", clock)
    engine.delay("set_cell", 5.0, when="after")
    standing = asyncio.create_task(stands(election, engine))
    await clock.asleep()
    clock.advance(5)
    assert await standing
    clock.advance(2.9)
    assert election.is_trusted
    clock.advance(0.2)
    assert not election.is_trusted


async def test_a_renewal_keeps_the_epoch(engine, clock):
    election = Election("a", clock)
    epochs = set()
    for _ in range(5):
        assert await stands(election, engine)
        epochs.add(election.epoch)
        clock.advance(election.every)

    assert len(epochs) == 1


async def test_a_renewal_that_failed_leaves_the_old_trust_as_it_was(engine, clock):
    election = Election("a", clock)
    await election.stand(engine)
    clock.advance(3)
    engine.fail("set_cell")
    with pytest.raises(EngineUnavailable):
        await election.stand(engine)

    clock.advance(4.9)
    assert election.is_trusted
    clock.advance(0.2)
    assert not election.is_trusted


async def test_a_leader_that_was_stopped_and_goes_on_does_not_trust_itself(engine, clock):
    first, second = Election("a", clock), Election("b", clock)
    await first.stand(engine)
    clock.advance(60)  # SIGSTOP ... SIGCONT

    assert not first.is_trusted
    assert await stands(second, engine)
    assert not await stands(first, engine)
    assert not first.is_trusted


async def test_a_resignation_lets_the_next_one_lead_at_once(engine, clock):
    first, second = Election("a", clock), Election("b", clock)
    await first.stand(engine)
    await first.resign(engine)

    assert not first.is_trusted
    assert await stands(second, engine)


async def test_a_late_resignation_ends_nobody_elses_term(engine, clock):
    first, second = Election("a", clock), Election("b", clock)
    await first.stand(engine)
    clock.advance(11)
    await second.stand(engine)
    await first.resign(engine)

    term = await present_term(engine)
    assert term is not None
    assert term.holder == "b"


async def test_who_never_led_has_nothing_to_resign(engine, clock):
    await Election("a", clock).resign(engine)

    assert "set_cell" not in engine.verbs


@pytest.mark.parametrize("terms", [0, 1])
async def test_a_resignation_ends_also_a_term_whose_reply_was_lost(engine, clock, terms):
    """A process that is told to stop in the middle of its try must not keep the others waiting."""
    first, second = Election("a", clock), Election("b", clock)
    for _ in range(terms):
        await first.stand(engine)
    engine.fail("set_cell", EngineUnavailable("memory", "lost"), when="after")
    with pytest.raises(EngineUnavailable):
        await first.stand(engine)

    await first.resign(engine)

    assert await stands(second, engine)
