"""Metadata travels with a job and to the jobs it enqueues; a hook may add to it, or refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Call, Context, NewJob, Penstock, current
from penstock.core.metadata import LIMIT
from penstock.errors import BadHook, BadItem, BadOption

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def shop(tmp_path) -> Iterator[Penstock]:
    with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


def stored(app: Penstock, id: str) -> Any:
    return app.job(id).status().meta


def test_a_handler_reads_what_its_caller_gave(shop):
    seen = []

    @shop.task
    def send(ctx: Context) -> None:
        seen.append((dict(ctx.meta), current().meta["tenant"]))

    send.using(meta={"tenant": "acme", "deep": [1, {"a": None}]}).enqueue()
    shop.run_worker(until_empty=True)
    assert seen == [({"tenant": "acme", "deep": [1, {"a": None}]}, "acme")]


def test_a_job_without_metadata_has_none_and_its_handler_an_empty_dict(shop):
    seen = []

    @shop.task
    def send(ctx: Context) -> None:
        seen.append(dict(ctx.meta))

    job = send.enqueue()
    shop.run_worker(until_empty=True)
    assert (seen, stored(shop, job.id)) == ([{}], None)


def test_metadata_cannot_be_changed_by_the_handler(shop):
    @shop.task(retries=0)
    def send(ctx: Context) -> None:
        ctx.meta["tenant"] = "other"  # type: ignore[index]

    job = send.using(meta={"tenant": "acme"}).enqueue()
    shop.run_worker(until_empty=True)
    assert (job.status().reason or "").startswith("TypeError")


def test_what_is_given_later_is_added_and_counts(shop):
    @shop.task
    def send() -> None: ...

    first = send.using(meta={"a": 1, "b": 1})
    assert stored(shop, first.using(meta={"b": 2}).enqueue().id) == {"a": 1, "b": 2}
    assert stored(shop, first.enqueue().id) == {"a": 1, "b": 1}


@pytest.mark.parametrize("many", [False, True])
def test_jobs_that_are_enqueued_inside_a_job_take_it_over(shop, many):
    @shop.task
    def inner() -> None: ...

    @shop.task
    def outer() -> list[str]:
        task = inner.using(meta={"step": 2})
        made = task.enqueue_many([(), ()]) if many else [task.enqueue()]
        return [each.id for each in [*made, shop.enqueue("elsewhere")]]

    meta = {"tenant": "acme", "traceparent": TRACE, "step": 1}
    job = outer.using(meta=meta, correlation_id="request-1").enqueue()
    shop.run_worker(until_empty=True, queues=["default"])
    *made, elsewhere = job.result(timeout=5)
    for id in made:
        assert stored(shop, id) == {"tenant": "acme", "traceparent": TRACE, "step": 2}
        assert shop.job(id).status().correlation_id == "request-1"
    assert stored(shop, elsewhere) == meta


@pytest.mark.every_engine
def test_every_way_to_enqueue_takes_metadata(app):
    shop = app

    @shop.task
    def send(to: str) -> None: ...

    handles = [
        *send.using(meta={"a": 1}).enqueue_many([("x",), ("y",)]),
        shop.enqueue(send.name, {"to": "z"}, meta={"a": 1}),
        shop.enqueue("unknown", {"to": "z"}, meta={"a": 1}),
        *shop.enqueue_many([Call(send.name, {"to": "z"}, {"meta": {"a": 1}})]),
    ]
    assert [stored(shop, each.id) for each in handles] == [{"a": 1}] * 5


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ([1], "give a dict"),
        ({1: "a"}, "the name 1 cannot be used"),
        ({"penstock.redact": ["a"]}, "does not begin with 'penstock.'"),
        ({"a": object()}, "cannot be written as JSON"),
        ({"a": "x" * LIMIT}, "over the limit of 4096"),
    ],
)
def test_what_cannot_be_metadata_is_refused_where_it_is_given(shop, meta, why):
    @shop.task
    def send() -> None: ...

    with pytest.raises(BadOption, match="meta=") as refused:
        send.using(meta=meta)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 300


def test_what_comes_together_is_limited_too(shop):
    @shop.task
    def send() -> None: ...

    half = "x" * (LIMIT // 2)
    with pytest.raises(BadOption, match="over the limit"):
        send.using(meta={"a": half}).using(meta={"b": half}).enqueue()
    assert shop.count() == 0


# --- before_enqueue -----------------------------------------------------------------------------


def test_a_hook_sees_each_job_and_adds_to_it(shop):
    seen = []

    @shop.before_enqueue
    def add(job: NewJob) -> None:
        seen.append((job.task, job.queue, job.key, job.tags, job.arguments, repr(job)))
        job.meta["tenant"] = f"of {job.arguments['to']}"
        job.correlation_id = "c-1"

    @shop.task(name="send", queue="mail", key="k", tags=["t"])
    def send(to: str) -> None: ...

    handles = [send.enqueue("a"), *send.enqueue_many([("b",), ("c",)])]
    handles.append(shop.enqueue("send", {"to": "d"}))
    handles.append(shop.enqueue("unknown", {"to": "e"}))
    metas = [stored(shop, each.id) for each in handles]
    assert metas == [{"tenant": f"of {to}"} for to in "abcde"]
    assert {each.status().correlation_id for each in handles} == {"c-1"}
    assert seen[0] == (
        "send",
        "mail",
        "k",
        ("t",),
        {"to": "a"},
        f"<NewJob {handles[0].id} of send>",
    )
    assert len(seen) == 5


async def test_a_hook_sees_awaited_enqueues_too(shop):
    @shop.before_enqueue
    def add(job: NewJob) -> None:
        job.meta["tenant"] = "acme"

    @shop.task
    def send() -> None: ...

    handles = [await send.aenqueue(), *await send.aenqueue_many([()])]
    metas = [(await each.astatus()).meta for each in handles]
    assert metas == [{"tenant": "acme"}] * 2
    await shop.aclose()


def test_hooks_run_in_order_and_see_what_was_added(shop):
    @shop.before_enqueue
    def first(job: NewJob) -> None:
        job.meta["trail"] = ["first"]

    @shop.before_enqueue
    def second(job: NewJob) -> None:
        job.meta["trail"].append("second")

    @shop.task
    def send() -> None: ...

    assert stored(shop, send.enqueue().id) == {"trail": ["first", "second"]}


def test_a_hook_refuses_a_job_by_raising_and_nothing_is_stored(shop):
    @shop.before_enqueue
    def refuse(job: NewJob) -> None:
        if job.arguments["to"] == "b":
            raise PermissionError("not b")

    @shop.task
    def send(to: str) -> None: ...

    with pytest.raises(PermissionError, match="not b"):
        send.enqueue("b")
    with pytest.raises(PermissionError) as refused:
        send.enqueue_many([("a",), ("b",)])
    assert refused.value.__notes__ == ["this was raised for item 1; nothing was stored"]
    assert shop.count() == 0
    send.enqueue("a")
    assert shop.count() == 1


def test_what_a_hook_adds_is_checked(shop):
    @shop.before_enqueue
    def add(job: NewJob) -> None:
        job.meta["much"] = "x" * LIMIT

    @shop.task
    def send() -> None: ...

    with pytest.raises(BadOption, match="over the limit"):
        send.enqueue()
    with pytest.raises(BadItem, match="item 0 is wrong and nothing was stored: meta="):
        send.enqueue_many([()])
    assert shop.count() == 0


def test_a_hook_keeps_what_a_task_hides(shop):
    @shop.before_enqueue
    def add(job: NewJob) -> None:
        assert "penstock.redact" not in job.meta
        job.meta["tenant"] = "acme"

    @shop.task(redact=["iban"])
    def pay(iban: str) -> None: ...

    job = pay.enqueue("DE02")
    assert stored(shop, job.id) == {"tenant": "acme", "penstock.redact": ["iban"]}


def test_a_function_that_enqueue_cannot_call_is_no_hook(shop):
    async def later(job: NewJob) -> None: ...

    def yields(job: NewJob) -> Iterator[None]:
        yield

    def nothing() -> None: ...

    for function, why in (
        (later, "write a plain function"),
        (yields, "write a plain function"),
        (nothing, "one argument, the NewJob"),
    ):
        with pytest.raises(BadHook, match="cannot be a before_enqueue hook") as refused:
            shop.before_enqueue(function)
        assert why in str(refused.value)
