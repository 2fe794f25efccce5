"""What an operator does to a store as a whole."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Call, State
from penstock.engines.records import Control, Count, QueueSettings
from penstock.errors import BadItem, BadOption
from penstock.job import PAGE


@pytest.fixture
def send(app):
    return app.task(name="send", queue="mail")(_nothing)


def test_jobs_are_counted_by_queue_and_state(app, send):
    send.enqueue_many([(), ()])
    send.using(delay=60).enqueue()
    found = sorted(app.counts(), key=lambda count: count.state)
    assert found == [
        Count(queue="mail", priority=5, state=State.READY, hold=None, jobs=2),
        Count(queue="mail", priority=5, state=State.SCHEDULED, hold=None, jobs=1),
    ]


def test_jobs_are_found_by_what_they_are(app, send):
    tagged = send.using(tags=["a"], key="k", correlation_id="c", queue="slow").enqueue()
    other = send.enqueue()
    other.cancel()
    assert _ids(app.find(tag="a")) == [tagged.id]
    assert _ids(app.find(key="k", queue=["slow", "mail"])) == [tagged.id]
    assert _ids(app.find(correlation_id="c")) == [tagged.id]
    assert _ids(app.find(state="cancelled")) == [other.id]
    assert _ids(app.find(state=("cancelled", "ready"), task="send")) == [other.id, tagged.id]
    assert _ids(app.find(id=other.id)) == [other.id]
    assert _ids(app.find(hold="unknown_task")) == []
    assert _ids(app.find()) == [other.id, tagged.id]


async def test_pages_follow_one_another(app, send):
    handles = await send.aenqueue_many([()] * 5)
    page = await app.afind(limit=3)
    rest = await app.afind(limit=3, cursor=page.cursor)
    assert _ids(page) + _ids(rest) == [handle.id for handle in reversed(handles)]


def test_what_fits_is_purged_in_as_many_steps_as_it_takes(app, send):
    send.enqueue_many([()] * 2500)
    kept = send.using(queue="slow").enqueue()
    assert app.purge(queue="mail") == 2500
    assert _ids(app.find()) == [kept.id]
    assert app.purge() == 1


def test_the_jobs_that_fit_are_counted(app, send):
    send.enqueue_many([()] * 3)
    send.using(queue="slow").enqueue().cancel()
    assert (app.count(), app.count(queue="mail"), app.count(state="cancelled")) == (4, 3, 1)


def test_jobs_are_found_by_when_they_were_enqueued(app, send):
    job = send.enqueue()
    then = job.status().enqueued_at
    assert _ids(app.find(since=then)) == [job.id]
    assert _ids(app.find(until=then - timedelta(seconds=1))) == []
    assert app.count(since=then, until=then.timestamp() + 1) == 1


def test_what_became_of_each_of_many_ids_is_told(app, send):
    waits, ended = send.enqueue(), send.enqueue()
    ended.cancel()
    assert app.cancel_many([waits.id, "nobody", ended.id], "too late") == [
        Control(waits.id, True, State.CANCELLED),
        Control("nobody", False, None),
        Control(ended.id, False, State.CANCELLED),
    ]
    assert waits.status().reason == "too late"
    assert app.retry_many([ended.id, "nobody"]) == [
        Control(ended.id, True, State.READY),
        Control("nobody", False, None),
    ]
    assert app.cancel_many([]) == []


def test_all_that_fit_are_cancelled_page_by_page(app, send):
    send.enqueue_many([()] * (PAGE + 5))
    kept = send.using(queue="slow").enqueue()
    steps: list[int] = []
    assert app.cancel_all(queue="mail", told=steps.append) == PAGE + 5
    assert steps == [PAGE, 5]
    assert kept.status().state is State.READY
    assert app.cancel_all(queue="mail") == 0


def test_all_that_failed_are_retried_and_what_was_cancelled_only_if_asked_for(app, send):
    send.enqueue().cancel()
    assert app.retry_all() == 0
    assert app.retry_all(state="cancelled") == 1
    assert app.count(state="ready") == 1


@pytest.mark.every_engine
async def test_many_jobs_of_tasks_by_name_are_stored_at_once(app, send):
    handles = await app.aenqueue_many(
        [Call("send"), ("others", {"size": 3}, {"delay": 60, "id": "my-own"})]
    )
    jobs = [await handle.astatus() for handle in handles]
    assert [(job.task, job.queue, job.arguments) for job in jobs] == [
        ("send", "mail", {}),
        ("others", "default", {"size": 3}),
    ]
    assert handles[1].id == "my-own"


def test_one_wrong_call_of_many_stores_nothing(app, send):
    with pytest.raises(BadItem) as caught:
        app.enqueue_many([Call("send"), Call("send", {"colour": "red"})])
    assert (caught.value.index, caught.value.task) == (1, "send")
    assert app.count() == 0


@pytest.mark.every_engine
async def test_the_stores_instant_is_asked(app):
    assert await app.anow() == pytest.approx(app.now(), abs=600)


def test_a_queue_is_paused_with_a_note_and_resumed(app, send):
    send.enqueue()
    app.pause("mail", "provider is down")
    assert app.queues()["mail"] == QueueSettings(paused=True, note="provider is down")
    app.resume("mail")
    assert app.queues()["mail"] == QueueSettings()


async def test_the_rest_of_a_queues_settings_survives_a_pause(app):
    await app.aset_queue("mail", max_running=3, ordered=True, fair=True, weights={"vip": 2.0})
    await app.apause("mail")
    await app.aresume("mail")
    settings = (await app.aqueues())["mail"]
    expected = QueueSettings(max_running=3, ordered=True, fair=True, weights={"vip": 2.0})
    assert settings == expected


def test_nobody_works_yet(app):
    assert app.workers() == []


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            {"state": "done"},
            "state='done': give one or more of scheduled, ready, running, succeeded, failed, "
            "cancelled",
        ),
        (
            {"hold": "x"},
            "hold='x': give one or more of limit, rate, breaker, dependency, unknown_task, moving",
        ),
        ({"queue": []}, "queue=[]: it is empty and nothing would fit; leave it out for all"),
        ({"tag": ""}, "tag='': it is empty; give at least one character"),
        (
            {"colour": "red"},
            "colour='red': jobs are not found by this; there are id, state, queue, task, key, "
            "hold, tag, correlation_id, since, until",
        ),
        ({"limit": 0}, "limit=0: give a whole number from 1 to 1000000"),
        ({"limit": 1 << 70}, f"limit={1 << 70}: give a whole number from 1 to 1000000"),
        ({"cursor": 5}, "cursor=5: give text, not int"),
        ({"state": 5}, "state=5: give a word or a list of words"),
        ({"id": None}, "id=None: give a word or a list of words"),
        ({"queue": b"mail"}, "queue=b'mail': give a word or a list of words"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(memory, question, message):
    with pytest.raises(BadOption) as caught:
        memory.find(**question)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"max_running": 0},
            "max_running=0: give a whole number from 1; to let nothing run, pause the queue",
        ),
        (
            {"max_running": True},
            "max_running=True: give a whole number from 1;",
        ),
        ({"weights": {"a": "x"}}, "weights={'a': 'x'}: give each key a number"),
        ({"weights": {5: 1}}, "weights=5: give text, not int"),
        ({"weights": None}, "weights=None: give a dict with a number for each key"),
        ({"paused": "yes"}, "paused='yes': give True or False"),
        ({"fair": 1}, "fair=1: give True or False"),
        ({"ordered": None}, "ordered=None: give True or False"),
        ({"note": 5}, "note=5: give text, not int"),
        ({"note": "a\0"}, "note='a\\x00': it contains the character NUL, which no store can keep"),
        (
            {"colour": 1},
            "colour=1: no such setting; there are paused, note, max_running, ordered, fair, "
            "weights",
        ),
    ],
)
def test_a_queue_setting_that_makes_no_sense_is_refused(memory, changes, message):
    with pytest.raises(BadOption) as caught:
        memory.set_queue("mail", **changes)
    assert str(caught.value).startswith(message)
    assert memory.queues() == {}


def test_a_share_of_nothing_is_refused(memory):
    with pytest.raises(BadOption, match="^weights="):
        memory.set_queue("mail", fair=True, weights={"a": 0})


def test_a_queue_without_a_name_is_refused(memory):
    with pytest.raises(BadOption, match="queue='': it is empty"):
        memory.pause("")


def _ids(page) -> list[str]:
    return [job.id for job in page.jobs]


def _nothing() -> None: ...
