"""Enqueuing: what is stored, what is refused at the caller, and what is a no-op that says so."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from penstock import Payload, Penstock
from penstock.cli.store import stored_job
from penstock.context import CURRENT, Context
from penstock.errors import (
    BadArguments,
    BadItem,
    BadOption,
    EngineReadOnly,
    PayloadTooLarge,
    Unencodable,
)


@pytest.fixture
def send(app):
    @app.task(name="send", queue="mail")
    def send(to: str, body: str = "hello") -> str:
        return to

    return send


@pytest.mark.every_engine
def test_a_job_is_stored_when_enqueue_returns(app, url, send):
    handle = send.enqueue("a@b.c", body="hi")
    assert handle.created
    assert handle.because is None
    job = handle.status()
    assert (job.task, job.queue, job.arguments) == ("send", "mail", {"to": "a@b.c", "body": "hi"})
    assert job.state == "ready"
    assert job.enqueued_by == f"{socket.gethostname()}:{os.getpid()}"


def test_only_what_was_given_is_stored(send):
    assert send.enqueue("a@b.c").status().arguments == {"to": "a@b.c"}


@pytest.mark.every_engine
async def test_async_code_awaits_the_same(send):
    handle = await send.aenqueue("a@b.c")
    job = await handle.astatus()
    assert job.arguments == {"to": "a@b.c"}


def test_a_wrong_call_fails_at_the_caller(send, app):
    with pytest.raises(TypeError, match="send: missing a required argument: 'to'; it takes"):
        send.enqueue()
    with pytest.raises(BadArguments, match="argument 'to': Expected str, got int"):
        send.enqueue(7)
    with pytest.raises(Unencodable, match="cannot be stored as JSON"):
        app.task(name="loose")(lambda anything: None).enqueue(object())
    assert app.counts() == []


async def test_a_wrong_call_fails_at_the_async_caller(send):
    with pytest.raises(BadArguments):
        await send.aenqueue(to=7)


def test_arguments_above_the_limit_are_refused(url):
    with Penstock(url, max_payload=100) as app:
        task = app.task(name="send")(_takes_text)
        with pytest.raises(PayloadTooLarge) as caught:
            task.enqueue("x" * 200)
    assert str(caught.value) == (
        "send: 211 bytes are over the limit of 100; store the data elsewhere and pass a "
        "reference, or raise max_payload"
    )


@pytest.mark.every_engine
def test_an_id_that_is_known_is_a_no_op_that_says_so(send):
    first = send.using(id="cmd-1").enqueue("a")
    again = send.using(id="cmd-1").enqueue("b")
    assert (first.created, first.because) == (True, None)
    assert (again.created, again.because, again.id) == (False, "id", "cmd-1")
    assert again.status().arguments == {"to": "a"}
    assert repr(again) == "<Handle cmd-1, was there already (same id)>"


@pytest.mark.every_engine
def test_a_given_id_stays_known_after_its_job_is_purged(send, app):
    send.using(id="cmd-1").enqueue("a")
    assert app.purge() == 1
    assert not send.using(id="cmd-1").enqueue("b").created


@pytest.mark.every_engine
def test_a_unique_key_that_is_taken_is_a_no_op_that_names_its_owner(send):
    first = send.using(unique="welcome:7").enqueue("a")
    again = send.using(unique="welcome:7").enqueue("b")
    assert (again.created, again.because, again.id) == (False, "unique", first.id)


# --- many ---------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_many_jobs_come_as_tuples_or_dicts(send):
    handles = send.enqueue_many([("a",), {"to": "b", "body": "x"}, ["c", "y"]])
    assert [handle.status().arguments for handle in handles] == [
        {"to": "a"},
        {"to": "b", "body": "x"},
        {"to": "c", "body": "y"},
    ]


@pytest.mark.every_engine
async def test_many_jobs_can_be_awaited(send):
    handles = await send.aenqueue_many({"to": str(number)} for number in range(5))
    assert len({handle.id for handle in handles}) == 5


def test_no_jobs_at_all_are_no_error(send):
    assert send.enqueue_many([]) == []


@pytest.mark.every_engine
def test_a_list_longer_than_a_batch_is_stored_whole(app, send):
    handles = send.enqueue_many([(str(number),) for number in range(2500)])
    assert len(handles) == 2500
    assert sum(count.jobs for count in app.counts()) == 2500
    assert handles[-1].status().arguments == {"to": "2499"}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((1,), "item 2 is wrong and nothing was stored: send: argument 'to': Expected str, got"),
        ({"too": "x"}, "item 2 is wrong and nothing was stored: send: "),
        (
            "text",
            "item 2 is wrong and nothing was stored: send: give a tuple of positional or a dict "
            "of keyword arguments, not 'text'",
        ),
    ],
)
def test_one_bad_item_is_named_before_anything_is_stored(app, send, item, message):
    with pytest.raises(BadItem) as caught:
        send.enqueue_many([("a",), ("b",), item, ("c",)])
    assert str(caught.value).startswith(message)
    assert caught.value.index == 2
    assert isinstance(caught.value.error, BadArguments)
    assert app.counts() == []


def test_what_a_hook_raises_names_the_item(memory):
    task = memory.task(name="send", key=lambda text: 1 / len(text))(_takes_text)
    with pytest.raises(ZeroDivisionError) as caught:
        task.enqueue_many([("",), ("a",)])
    assert caught.value.__notes__ == ["this was raised for item 0; nothing was stored"]


def test_one_id_for_many_jobs_is_refused(app, send):
    with pytest.raises(BadOption) as caught:
        send.using(id="x").enqueue_many([("a",), ("b",)])
    assert str(caught.value) == (
        "id='x': one id for 2 jobs; give a function of the arguments instead"
    )
    assert app.counts() == []


def test_a_commit_that_fails_says_how_many_jobs_are_stored(memory, monkeypatch):
    task = memory.task(name="send")(_takes_text)
    monkeypatch.setattr(
        "penstock.engines.memory.engine.MemoryEngine.enqueue", _fails_at_the_third_call()
    )
    with pytest.raises(EngineReadOnly) as caught:
        task.enqueue_many([(str(number),) for number in range(3000)])
    assert caught.value.__notes__ == ["2000 of 3000 jobs were stored before this"]


# --- by name ------------------------------------------------------------------------------------


def test_a_known_task_by_name_checks_its_arguments_and_has_its_options(app, send):
    assert app.enqueue("send", {"to": "a"}).status().queue == "mail"
    with pytest.raises(BadArguments, match="send: "):
        app.enqueue("send", {"too": "a"})
    with pytest.raises(BadArguments, match="argument 'to'"):
        app.enqueue("send", {"to": 7})


@pytest.mark.every_engine
def test_an_unknown_task_by_name_is_stored_as_it_is(app):
    job = app.enqueue("elsewhere.resize", {"width": 7}, priority="high", key="k").status()
    assert (job.task, job.queue, job.arguments) == ("elsewhere.resize", "default", {"width": 7})
    assert (job.priority, job.key) == (0, "k")
    assert app.enqueue("elsewhere.resize").status().arguments == {}


@pytest.mark.every_engine
async def test_a_task_by_name_can_be_awaited(app, send):
    job = await (await app.aenqueue("send", {"to": "a"}, delay="1h")).astatus()
    assert job.state == "scheduled"


@pytest.mark.parametrize("name", ["", "n" * 256, "a\0b", 7])
def test_a_task_name_that_no_store_can_keep_is_refused(memory, name):
    with pytest.raises(BadOption, match="^task="):
        memory.enqueue(name)


@pytest.mark.every_engine
def test_a_whole_body_is_stored_as_it_is(app):
    @app.task(name="hook")
    def hook(payload: Payload) -> None: ...

    assert hook.enqueue(Payload(a=1)).status().arguments == {"payload": {"a": 1}}
    assert app.enqueue("hook", {"b": 2}).status().arguments == {"payload": {"b": 2}}


# --- inside a job -------------------------------------------------------------------------------


def test_a_job_hands_its_correlation_id_on(app, send):
    id = send.using(correlation_id="request-9").enqueue("a").id
    parent = stored_job(app, id)
    token = CURRENT.set(Context(msgspec.structs.replace(parent, worker="host-1-abc")))
    try:
        child = send.enqueue("b").status()
        other = send.using(correlation_id="mine").enqueue("b").status()
        named = app.enqueue("elsewhere").status()
    finally:
        CURRENT.reset(token)
    assert (child.correlation_id, child.enqueued_by) == ("request-9", "host-1-abc")
    assert other.correlation_id == "mine"
    assert named.correlation_id == "request-9"


def _takes_text(text: str) -> None: ...


def _fails_at_the_third_call():
    from penstock.engines.memory.engine import MemoryEngine

    enqueue, calls = MemoryEngine.enqueue, []

    async def failing(self, drafts):
        calls.append(len(drafts))
        if len(calls) == 3:
            raise EngineReadOnly("memory", "it was told to")
        return await enqueue(self, drafts)

    return failing


@pytest.mark.parametrize("items", [None, 5, "ab", b"ab", {"to": "a"}])
def test_what_is_no_list_of_calls_is_refused(send, items):
    with pytest.raises(BadArguments) as caught:
        send.enqueue_many(items)
    message = f"enqueue_many takes a list of tuples or dicts, one per job, not {items!r}"
    assert str(caught.value) == f"{send.name}: {message}"


@pytest.mark.parametrize("args", [0, "", []])
def test_arguments_that_are_nothing_are_not_taken_for_none(app, send, args):
    for name in ("elsewhere", send.name):
        with pytest.raises(BadArguments, match="must be a dict, not a"):
            app.enqueue(name, args)


def test_a_task_that_is_no_name_is_refused(memory):
    with pytest.raises(BadOption, match=r"task=\[\]: give text, not list"):
        memory.enqueue([])
