"""The application of the process tests: tasks that leave a trace in a file when they run."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from pathlib import Path

from penstock import Penstock, current
from penstock.events import Stale

PLACE = Path(os.environ["SHOP_PLACE"])
"""Where the traces are: ``trace`` has a line per event, a file ``go`` lets waiting handlers end."""

app = Penstock(os.environ["SHOP_URL"])


GREED: list[bytearray] = []


def trace(*words: object) -> None:
    """Append one line; short appends are not mixed up."""
    line = " ".join(str(word) for word in (*words, os.getpid())) + "\n"
    with open(PLACE / "trace", "a") as file:
        file.write(line)


async def allowed() -> None:
    """Wait until the test lets handlers go on."""
    while not (PLACE / "go").exists():  # noqa: ASYNC110 - the sign comes from another process
        await asyncio.sleep(0.01)


@app.task
async def patient(number: int) -> int:
    trace("begin", number)
    await allowed()
    trace("end", number)
    return number


@app.task
def threaded(number: int) -> int:
    trace("begin", number)
    while not (PLACE / "go").exists():
        threading.Event().wait(0.01)
    trace("end", number)
    return number


@app.task
async def quick(number: int) -> int:
    trace("begin", number)
    return number


@app.task
async def poison() -> None:
    trace("poison", current().attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def brief(number: int) -> int:
    """Work that takes a moment, as most does."""
    trace("begin", number)
    await asyncio.sleep(0.05)
    trace("end", number)
    return number


@app.task
def hold_interpreter(seconds: int) -> str:
    """No other thread of this process can run meanwhile, not even the one that beats."""
    trace("begin", current().attempt)
    ctypes.PyDLL(None).sleep(seconds)
    trace("end", current().attempt)
    return "kept"


@app.task(timeout=0.2, retries=0)
def stuck() -> None:
    """Code in C that no exception reaches."""
    trace("stuck", current().attempt)
    ctypes.CDLL(None).sleep(600)


@app.task
async def greedy() -> None:
    """Memory that is never given back."""
    GREED.append(bytearray(b"x") * (200 << 20))
    trace("begin", current().attempt)


@app.task(at_most_once=True)
async def payment() -> None:
    trace("payment")
    await allowed()


@app.on(Stale)
def stale(event: Stale) -> None:
    trace("stale", event.job)


@app.task
def told(job_id: str, error: str) -> None:
    trace("told", job_id, error.replace(" ", "_"))


@app.task(at_most_once=True, on_failure=told)
async def transfer() -> None:
    trace("transfer")
    await allowed()


def climb() -> int:
    """Ten steps; the first attempt is stopped at the fifth."""
    context = current()
    trace("from", context.saved or 0)
    for step in range((context.saved or 0) + 1, 11):
        trace("step", step)
        context.checkpoint(step)
        context.progress(step / 10)
        while step == 5 and not (PLACE / "go").exists():
            threading.Event().wait(0.01)
    return 10


@app.task
def climb_on_thread() -> int:
    return climb()


@app.task
async def climb_on_loop() -> int:
    return await asyncio.to_thread(climb)


@app.task(isolation="process")
def climb_in_child() -> int:
    return climb()
