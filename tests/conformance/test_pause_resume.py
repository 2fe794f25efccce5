"""Pause and resume: a paused queue gives nothing, and loses nothing."""

from __future__ import annotations

from conformance.steps import bury, claim, claim_one, ids, put, settle, stored
from penstock.core.job import State, Verdict
from penstock.engines import changes, reads
from penstock.engines.records import QueueSettings

PAUSED = QueueSettings(paused=True, note="deploy of 12:00")


async def test_a_paused_queue_gives_nothing(engine):
    await put(engine)
    await engine.set_queue("default", PAUSED)
    assert await claim(engine, want=5) == []


async def test_a_resumed_queue_gives_in_the_old_order(engine):
    first = await put(engine)
    await engine.set_queue("default", PAUSED)
    second = await put(engine)
    await engine.set_queue("default", QueueSettings())
    assert ids(await claim(engine, want=5)) == [first, second]


async def test_the_other_queues_go_on(engine):
    await put(engine, queue="a")
    other = await put(engine, queue="b")
    await engine.set_queue("a", PAUSED)
    assert ids(await claim(engine, "a", "b", want=5)) == [other]


async def test_a_queue_may_be_paused_before_it_has_jobs(engine):
    await engine.set_queue("default", PAUSED)
    id = await put(engine)
    assert await claim(engine) == []
    assert (await stored(engine, id)).state is State.READY


async def test_running_jobs_of_a_paused_queue_can_be_settled(engine):
    await put(engine)
    job = await claim_one(engine)
    await engine.set_queue("default", PAUSED)
    assert await settle(engine, job, "succeeded") is Verdict.DONE


async def test_a_rescued_job_waits_in_its_paused_queue(engine):
    await put(engine)
    job = await claim_one(engine)
    await engine.set_queue("default", PAUSED)
    await bury(engine, job.worker)
    assert await claim(engine) == []
    await engine.set_queue("default", QueueSettings())
    assert ids(await claim(engine)) == [job.id]


async def test_settings_are_remembered_whole(engine):
    settings = QueueSettings(
        paused=True, note="why", max_running=3, fair=True, weights={"a": 2.0, "b": 0.5}
    )
    await engine.set_queue("mail", settings)
    assert (await engine.queues())["mail"] == settings


async def test_setting_a_queue_twice_changes_nothing(engine):
    await engine.set_queue("mail", PAUSED)
    await engine.set_queue("mail", PAUSED)
    assert await engine.queues() == {"mail": PAUSED}


async def test_every_queue_with_a_setting_or_a_job_is_listed(engine):
    assert await reads.queues(engine) == {}
    await put(engine, queue="jobs")
    await engine.set_queue("settings", PAUSED)
    assert await reads.queues(engine) == {"jobs": QueueSettings(), "settings": PAUSED}


async def test_an_engine_lists_only_queues_about_which_something_was_decided(engine):
    await put(engine, queue="jobs")
    for name in ("z", "a"):
        await engine.set_queue(name, PAUSED)
    assert list(await engine.queues()) == ["a", "z"]


async def test_a_queue_whose_jobs_have_all_ended_is_listed(engine):
    await changes.cancel(engine, [await put(engine, queue="old")], "enough")
    assert list(await reads.queues(engine)) == ["old"]


async def test_another_handle_sees_the_pause(store):
    first, second = await store.open(), await store.open()
    await put(first)
    await first.set_queue("default", PAUSED)
    assert await claim(second) == []
    assert (await second.queues())["default"] == PAUSED
