"""Right use of the public API: checkers find nothing wrong here, and infer what is asserted."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from penstock import (
    INJECTED,
    AsyncTask,
    Context,
    Handle,
    Job,
    Payload,
    Penstock,
    Sender,
    Task,
    events,
)
from penstock.engines.records import Count, Page, QueueSettings

app = Penstock("memory://", lease="10s", priorities={"urgent": -5})


@app.task
def send(to: str, body: str = "") -> int:
    return len(to + body)


@app.task
async def fetch(url: str, *, tries: int = 3) -> dict[str, Any]:
    return {url: tries}


@app.task(queue="mail", retries=5, timeout="30s", unique=lambda to: f"mail:{to}")
def declared(to: str) -> None: ...


@app.task(
    name="pay",
    priority=lambda account, cents: "high" if cents > 100 else None,
    delay=lambda account, cents: timedelta(seconds=5),
    key="k",
    tags=["a"],
    at_most_once=True,
)
async def pay(account: str, cents: int) -> str:
    return account


@app.task
def whole(payload: Payload) -> None: ...


@app.task
def resize(album: str, ctx: Context = INJECTED) -> float:
    ctx.progress(0.5)
    return 1.0


# --- what a declaration is ----------------------------------------------------------------------

plain: Task[[str, str], int] = send
awaitable: AsyncTask[[str, int], str] = pay
assert_type(send("a", body="b"), int)
coroutine: Coroutine[Any, Any, dict[str, Any]] = fetch("a", tries=2)
assert_type(send.name, str)

# --- enqueuing ----------------------------------------------------------------------------------

assert_type(send.enqueue("a"), Handle[int])
assert_type(send.enqueue("a", "b"), Handle[int])
assert_type(send.enqueue(to="a", body="b"), Handle[int])
assert_type(fetch.enqueue("a", tries=2), Handle[dict[str, Any]])
assert_type(declared.enqueue("a"), Handle[None])
assert_type(pay.enqueue("a", 5), Handle[str])
assert_type(whole.enqueue(Payload(a=1)), Handle[None])
assert_type(resize.enqueue("a"), Handle[float])
assert_type(send.enqueue_many([("a",), {"to": "b"}]), list[Handle[int]])
assert_type(app.enqueue("elsewhere", {"a": 1}, priority="low"), Handle[Any])

bound = send.using(
    delay="5m",
    priority="urgent",
    queue="q",
    key="k",
    id="i",
    unique="u",
    unique_until="start",
    unique_for=5,
    expires_in=timedelta(days=1),
    tags=("a", "b"),
    name="n",
    correlation_id="c",
)
assert_type(bound.enqueue("a"), Handle[int])
assert_type(bound.using(run_at=datetime.now(UTC)).enqueue("a"), Handle[int])
assert_type(send.using(unique=lambda to, body: to).enqueue("a"), Handle[int])
sender: Sender[[str, str], int] = bound


async def in_async_code() -> None:
    assert_type(await send.aenqueue("a"), Handle[int])
    assert_type(await fetch.aenqueue("a"), Handle[dict[str, Any]])
    assert_type(await fetch("a"), dict[str, Any])
    assert_type(await send.aenqueue_many([("a",)]), list[Handle[int]])
    handle = await send.aenqueue("a")
    assert_type(await handle.aresult(timeout="5s"), int)
    assert_type(await handle.astatus(), Job)
    assert_type(await handle.acancel("why"), bool)
    assert_type(await app.acounts(), list[Count])
    assert_type(await app.afind(state="failed", queue=["a"], limit=5), Page)
    await app.apause("mail", note="why")
    async with app, app.worker(queues=["a"], concurrency=5) as worker:
        assert_type(worker.id, str)


# --- handles and operations ---------------------------------------------------------------------

handle = send.enqueue("a")
assert_type(handle.result(timeout=5), int)
assert_type(handle.status(), Job)
assert_type(handle.cancel(), bool)
assert_type(handle.cancel(reason="why"), bool)
handle.retry()
anything: list[Handle[object]] = [handle, pay.enqueue("a", 1)]
assert_type(app.job("x").result(), Any)
assert_type(app.counts(), list[Count])
assert_type(app.find(state=("failed", "cancelled"), limit=5, cursor=None), Page)
assert_type(app.purge(queue="mail"), int)
assert_type(app.queues(), dict[str, QueueSettings])
assert_type(app.set_queue("mail", max_running=1, fair=True), QueueSettings)
assert_type(app.cancel("x", reason="why"), bool)
app.pause("mail", "why")
app.resume("mail")


# --- events and workers -------------------------------------------------------------------------


@app.on(events.Failed)
def failed(event: events.Failed) -> None:
    assert_type(event.reason, str | None)


@app.on(events.Succeeded)
async def succeeded(event: events.Succeeded) -> None: ...


app.on(events.Enqueued, lambda event: print(event.priority))
failed(events.Failed(at=0.0, job="x"))
with app.worker_thread(threads=2) as thread:
    thread.stop_when_empty()
app.run_worker(queues="mail", until_empty=True)
