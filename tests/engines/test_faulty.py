"""The faulty engine: faults where the script says, and otherwise the engine inside."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from penstock.core.job import Draft, Outcome, OutcomeKind
from penstock.engines.engine import Engine
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Ask, WorkerInfo
from penstock.engines.wrapper import EngineWrapper
from penstock.errors import BadOption, EngineBusy, EngineUnavailable, ItemRefused
from penstock.testing import EngineCall, Faulty
from penstock.testing.faulty import VERBS


@pytest.fixture
async def faulty(clock):
    engine = Faulty(MemoryEngine(MemoryStore(), clock))
    await engine.open()
    yield engine
    engine.clear()
    await engine.close()


def draft(id: str) -> Draft:
    return Draft(id=id, task="work")


async def stored(faulty: Faulty) -> list[str]:
    """The ids in the store, whatever the script says."""
    return sorted(job.id for job in await faulty.inner.get(["a", "b", "c"]) if job is not None)


def test_every_verb_of_the_contract_passes_through_the_script():
    """No verb is left to the base class, where it would dodge the faults."""
    verbs = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction) if name[0] != "_"}

    assert verbs == VERBS | {"polls"}
    assert vars(EngineWrapper).keys() >= VERBS


async def test_nobody_gets_past_the_script(faulty):
    """A blocking caller has no way of its own: it comes by ``enqueue``, where faults are."""
    assert faulty.inlet is None
    assert await stored(faulty) == []


async def test_who_wants_to_hear_of_polling_hears_it_from_the_engine_inside(faulty):
    heard: list[str | None] = []
    faulty.polls = heard.append

    faulty.inner.polls("nobody listens")
    faulty.inner.polls(None)

    assert heard == ["nobody listens", None]
    assert faulty.polls == faulty.inner.polls


async def test_without_faults_it_is_the_engine_inside(faulty):
    (receipt,) = await faulty.enqueue([draft("a")])

    assert receipt.created
    assert await stored(faulty) == ["a"]
    assert faulty.traits is faulty.inner.traits
    assert faulty.clock is faulty.inner.clock


async def test_a_fault_before_the_commit_leaves_nothing_behind(faulty):
    faulty.fail("enqueue")

    with pytest.raises(EngineUnavailable) as error:
        await faulty.enqueue([draft("a")])

    assert "enqueue was cut before its commit" in str(error.value)
    assert await stored(faulty) == []
    assert (await faulty.enqueue([draft("a")]))[0].created


async def test_a_fault_after_the_commit_loses_only_the_reply(faulty):
    faulty.fail("enqueue", when="after")

    with pytest.raises(EngineUnavailable):
        await faulty.enqueue([draft("a")])

    assert await stored(faulty) == ["a"]


async def test_faults_come_in_the_order_they_were_told_and_as_often(faulty):
    faulty.fail("get", EngineBusy("memory", "a test"), times=2)
    faulty.fail("get", ZeroDivisionError())

    for kind in (EngineBusy, EngineBusy, ZeroDivisionError):
        with pytest.raises(kind):
            await faulty.get([])
    assert await faulty.get([]) == []


async def test_a_fault_without_an_end_ends_when_it_is_cleared(faulty):
    faulty.fail("get", times=None)
    for _ in range(5):
        with pytest.raises(EngineUnavailable):
            await faulty.get([])

    faulty.clear()

    assert await faulty.get([]) == []


async def test_a_fault_of_one_verb_is_not_another_ones(faulty):
    faulty.fail("enqueue")

    assert await faulty.get(["a"]) == [None]


async def test_a_verb_that_does_not_exist_is_refused(faulty):
    with pytest.raises(BadOption) as error:
        faulty.fail("exchagne")

    assert str(error.value).startswith("verb='exchagne': no such verb; use one of beat, cell, ")


async def test_a_delayed_call_takes_its_time_on_the_engines_clock(faulty, clock):
    faulty.delay("enqueue", 30)
    enqueueing = asyncio.create_task(faulty.enqueue([draft("a")]))
    await clock.asleep()
    assert await stored(faulty) == []

    clock.advance(30)

    await enqueueing
    assert await stored(faulty) == ["a"]


async def test_a_call_stops_at_a_gate_before_its_commit_while_others_pass(faulty):
    gate = faulty.block("enqueue")
    blocked = asyncio.create_task(faulty.enqueue([draft("a")]))
    await gate.reached.wait()

    await faulty.enqueue([draft("b")])
    assert await stored(faulty) == ["b"]
    gate.open()

    await blocked
    assert await stored(faulty) == ["a", "b"]


async def test_a_call_stops_at_a_gate_after_its_commit_then_loses_its_reply(faulty):
    gate = faulty.block("enqueue", when="after")
    faulty.fail("enqueue", when="after")
    blocked = asyncio.create_task(faulty.enqueue([draft("a")]))
    await gate.reached.wait()
    assert await stored(faulty) == ["a"]

    gate.open()

    with pytest.raises(EngineUnavailable):
        await blocked


async def test_clearing_lets_go_who_stands_at_a_gate(faulty):
    gate = faulty.block("get")
    blocked = asyncio.create_task(faulty.get([]))
    await gate.reached.wait()

    faulty.clear()

    assert await blocked == []


async def test_a_batch_with_a_refused_draft_is_refused_whole(faulty):
    faulty.refuse(lambda item: item.id == "b")

    with pytest.raises(ItemRefused) as error:
        await faulty.enqueue([draft("a"), draft("b")])

    assert "the test refuses b" in str(error.value)
    assert await stored(faulty) == []
    await faulty.enqueue([draft("a")])


async def test_an_exchange_with_a_refused_outcome_is_refused_whole(faulty):
    await faulty.join(WorkerInfo(id="w", tasks=("work",)))
    await faulty.enqueue([draft("a")])
    ask = Ask(worker="w", queues=("default",), want=1, slots=1)
    (job,) = (await faulty.exchange(ask)).jobs
    faulty.refuse(lambda item: item.result == b"bad")
    bad = Outcome(job="a", claim=job.claim, kind=OutcomeKind.SUCCEEDED, result=b"bad")

    with pytest.raises(ItemRefused):
        await faulty.exchange(Ask(worker="w", outcomes=(bad,)))

    assert [job.id for job in await faulty.held("w")] == ["a"]


async def test_a_store_that_is_down_fails_every_call_until_it_is_up(faulty):
    faulty.down()
    for call in (faulty.workers, faulty.open, faulty.queues, faulty.running):
        with pytest.raises(EngineUnavailable):
            await call()

    faulty.up()

    assert await faulty.running() == []


async def test_a_call_under_way_when_the_store_goes_down_loses_its_reply(faulty):
    gate = faulty.block("enqueue", when="after")
    calling = asyncio.create_task(faulty.enqueue([draft("a")]))
    await gate.reached.wait()

    faulty.down()
    gate.open()

    with pytest.raises(EngineUnavailable):
        await calling
    assert await stored(faulty) == ["a"]


async def test_a_store_that_is_down_can_be_closed(clock):
    faulty = Faulty(MemoryEngine(MemoryStore(), clock))
    faulty.down()

    await faulty.close()


async def test_every_call_is_in_the_log_also_those_that_failed(faulty):
    faulty.fail("get")
    with pytest.raises(EngineUnavailable):
        await faulty.get(["a"])
    await faulty.get(["b"])

    assert faulty.verbs == ["open", "get", "get"]
    assert faulty.calls[1:] == [EngineCall("get", (["a"],)), EngineCall("get", (["b"],))]
