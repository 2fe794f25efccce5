"""Handlers, results and policies that misbehave cost their own job, never the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import Depends
from penstock.context import Cancel, Context, Retry, Snooze
from penstock.core.job import State
from penstock.core.spec import Spec
from penstock.engines.records import Ask, Exchange
from penstock.errors import ItemRefused
from penstock.worker.runner import COPIED
from worker.rig import Handle, Rig, soon, specs


class Speechless(Exception):
    """Nobody can read its message."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class Unreadable:
    """A result that ends the process of whoever looks into it."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        sys.exit("do not look")


class Unbound:
    """A proxy that stands for nothing: even to ask for its class is an error."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # type: ignore[override]
        raise LookupError("outside of a request")


def stopped() -> None:
    raise StopIteration


def cancelled() -> None:
    raise asyncio.CancelledError


def interrupted() -> None:
    raise KeyboardInterrupt


def closed() -> None:
    raise GeneratorExit


def speechless() -> None:
    raise Speechless


def unreadable() -> Any:
    return Unreadable()


def unbound() -> Any:
    return Unbound()


def exits(failures: int, error: Exception) -> None:
    """A policy that had better not been asked."""
    sys.exit("policy")


def both(function: Callable[[], Any], **fields: Any) -> dict[str, Spec]:
    """The same handler as a coroutine and in a thread, and one that is well."""

    async def coroutine() -> Any:
        return function()

    def threaded() -> Any:
        return function()

    async def well() -> None:
        pass

    fields.setdefault("retries", 0)
    return {**specs(coroutine, threaded, **fields), **specs(well)}


@pytest.mark.parametrize(
    "handler", [stopped, cancelled, interrupted, closed, speechless, unreadable, unbound]
)
async def test_whatever_a_handler_does_it_fails_alone(rig: Rig, handler: Callable[[], Any]) -> None:
    async with rig.working(both(handler), threads=1):
        bad = await rig.ended(await rig.put("coroutine"), await rig.put("threaded"))
        (after,) = await rig.ended(await rig.put("well"))

    assert {job.state for job in bad} == {State.FAILED}
    assert after.state is State.SUCCEEDED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing can fork here")
@pytest.mark.parametrize("way", ["returns", "raises", "waits"])
async def test_a_fork_that_comes_back_from_its_handler_ends_there(rig: Rig, way: str) -> None:
    """It has the worker's connections, and what waits for a thread: it must use neither."""
    home, forks, cleaned = os.getpid(), list[int](), list[int]()

    def session() -> Iterator[None]:
        try:
            yield
        finally:
            cleaned.append(os.getpid())

    def forked() -> bool:
        pid = os.fork()
        if pid == 0 and way == "raises":
            raise ValueError("nobody hears this")
        forks.append(pid)
        return pid == 0

    async def coroutine(session: Any = Depends(session)) -> int:
        if forked() and way == "waits":
            await asyncio.sleep(3600)
        return os.getpid()

    def threaded() -> int:
        forked()
        return os.getpid()

    try:
        async with rig.working(specs(coroutine, threaded, retries=0), threads=1):
            jobs = await rig.ended(await rig.put("coroutine"), await rig.put("threaded"))
            codes = [await soon(asyncio.to_thread(_exit_code, pid)) for pid in forks]
    finally:
        for pid in forks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    assert [job.result for job in jobs] == [str(home).encode()] * 2
    assert codes == [COPIED, COPIED]
    assert cleaned == [home]


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_a_policy_that_exits_fails_the_job_and_not_the_worker(rig: Rig) -> None:
    async with rig.working(both(stopped, retries=exits), threads=1):
        bad = await rig.ended(await rig.put("coroutine"), await rig.put("threaded"))

    assert {job.state for job in bad} == {State.FAILED}
    assert {(job.reason or "").split("; then ")[1] for job in bad} == {"SystemExit: policy"}


@pytest.mark.parametrize(
    ("signal", "state"),
    [
        (Snooze(5, "\ud800\x00"), State.SCHEDULED),
        (Retry(5, "\ud800\x00"), State.SCHEDULED),
        (Cancel("\ud800\x00"), State.CANCELLED),
    ],
)
async def test_a_reason_that_no_store_can_keep_is_written_so_that_it_can(
    rig: Rig, signal: Exception, state: State
) -> None:
    def signals() -> None:
        raise signal

    async with rig.working(both(signals, retries=3)):
        ids = [await rig.put("coroutine"), await rig.put("threaded")]
        jobs = [await rig.in_state(id, state) for id in ids]

    assert {job.reason for job in jobs} == {"\\ud800\\x00"}


class Picky(Handle):
    """A store that cannot keep one of the reports."""

    async def exchange(self, ask: Ask) -> Exchange:
        if any(report.note == "bad" for report in ask.reports):
            raise ItemRefused("memory", "bad")
        return await super().exchange(ask)


async def test_a_report_that_cannot_be_stored_takes_no_other_with_it(rig: Rig) -> None:
    go = asyncio.Event()

    async def reports(note: str, ctx: Context) -> None:
        ctx.progress(0.5, note)
        await go.wait()

    worker = rig.worker(specs(reports))
    worker._connect = lambda: Picky(rig)
    bad = await rig.put("reports", b'{"note": "bad"}')
    good = await rig.put("reports", b'{"note": "good"}')
    async with asyncio.TaskGroup() as group:
        run = group.create_task(worker.run())
        job = await rig.meanwhile(rig.when(good, lambda job: job.note == "good"))
        go.set()
        await rig.ended(bad, good)
        worker.stop(0)
        await rig.over(run)

    assert job.progress == 0.5


def test_a_note_is_written_so_that_every_store_can_keep_it() -> None:
    context = Context(None)  # type: ignore[arg-type]
    context.progress(0.5, "\ud800\x00")
    assert context._latest == (0.5, "\\ud800\\x00")
