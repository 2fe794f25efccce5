"""Right use of the public API: checkers find nothing wrong here, and infer what is asserted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TextIO, assert_type

from penstock import (
    INJECTED,
    AsyncTask,
    Context,
    Depends,
    FailedAttempt,
    Handle,
    Job,
    Payload,
    Penstock,
    Router,
    Sender,
    Task,
    agather,
    as_completed,
    events,
    gather,
)
from penstock.engines.records import Count, QueueSettings
from penstock.errors import JobError
from penstock.job import Page

app = Penstock("memory://", lease="10s", priorities={"urgent": -5})


@app.task
def send(to: str, body: str = "") -> int:
    return len(to + body)


@app.task
async def fetch(url: str, *, tries: int = 3) -> dict[str, Any]:
    return {url: tries}


router = Router()


@router.task
def routed(to: str) -> int:
    return len(to)


@router.task(redact=["iban"])
async def paid(iban: str) -> bool:
    return bool(iban)


assert_type(routed("a"), int)
assert_type(routed.using(meta={"tenant": "acme"}).enqueue("a"), Handle[int])
assert_type(paid.enqueue("a"), Handle[bool])


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
    ctx.checkpoint({"row": ctx.saved})
    return 1.0


@app.task(on_success=whole.using(delay="5m"), on_failure="tell")
def followed(number: int) -> int:
    return number


assert_type(followed(1), int)


# --- dependencies and hooks ---------------------------------------------------------------------


class Session:
    def __init__(self, url: str = "") -> None: ...


def plain(ctx: Context) -> Session:
    return Session()


async def awaited() -> Session:
    return Session()


def generator() -> Generator[Session, None, None]:
    yield Session()


def iterator(of: Session = Depends(plain)) -> Iterator[Session]:
    yield of


async def async_generator() -> AsyncGenerator[Session, None]:
    yield Session()


async def async_iterator(of: Session = Depends(awaited)) -> AsyncIterator[Session]:
    yield of


def file() -> TextIO:
    return open("file")


assert_type(Depends(plain), Session)
assert_type(Depends(awaited), Session)
assert_type(Depends(generator), Session)
assert_type(Depends(iterator), Session)
assert_type(Depends(async_generator), Session)
assert_type(Depends(async_iterator), Session)
assert_type(Depends(Session), Session)


@app.task(stall="5m", isolation="process", max_memory="512MB")
async def report(
    id: int,
    a: Session = Depends(plain),
    b: Session = Depends(awaited),
    c: Session = Depends(generator),
    d: Session = Depends(async_generator),
    e: Session = Depends(async_iterator),
) -> str:
    return ""


@app.task
def export(id: int, *, out: Annotated[TextIO, Depends(file)] = INJECTED) -> None: ...


assert_type(report.enqueue(5), Handle[str])
assert_type(export.enqueue(5), Handle[None])


@app.startup
def start() -> None: ...


@app.startup
async def start_later() -> AsyncIterator[None]:
    yield


@app.shutdown
async def stop() -> None: ...


@app.middleware
def timed(ctx: Context) -> Generator[None, Any, None]:
    value = yield
    print(ctx.id, value)


@app.middleware
async def traced(ctx: Context) -> AsyncIterator[None]:
    yield


app.startup(lambda: print("up"))
start()
with app.override(plain, lambda: Session()):
    report.enqueue(1)


# --- what a declaration is ----------------------------------------------------------------------

sync: Task[[str, str], int] = send
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
    assert_type(await handle.astatus(), Job[int])
    assert_type(await agather([handle]), list[int])
    async for done in as_completed([handle], timeout="5s"):
        assert_type(done, Handle[int])
    async for job in app.jobs(state="failed"):
        assert_type(job, Job[Any])
    assert_type(await handle.acancel("why"), bool)
    assert_type(await app.acounts(), list[Count])
    assert_type(await app.afind(state="failed", queue=["a"], limit=5), Page)
    await app.apause("mail", note="why")
    async with app, app.worker(queues=["a"], concurrency=5) as worker:
        assert_type(worker.id, str)


# --- handles and operations ---------------------------------------------------------------------

handle = send.enqueue("a")
assert_type(handle.result(timeout=5), int)
assert_type(handle.status(), Job[int])
assert_type(handle.status().result, int | None)
assert_type(handle.status().enqueued_at, datetime)
assert_type(handle.status().arguments, dict[str, Any])
assert_type(send.job("x"), Handle[int])
assert_type(pay.job("x").result(), str)
assert_type(gather([handle, send.job("x")], timeout=5), list[int])
assert_type(gather(send.enqueue_many([("a",)])), list[int])
assert_type(gather([handle], return_exceptions=True), list[int | JobError])
for done in as_completed([handle]):
    assert_type(done.result(), int)
for job in app.jobs(state="failed", queue=["a"]):
    assert_type(job, Job[Any])
    assert_type(job.errors, tuple[FailedAttempt, ...])
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
