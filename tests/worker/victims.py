"""Tasks for children: this module is imported by the child processes of suspects."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass

from penstock.context import Context
from penstock.core.spec import Spec
from worker.rig import spec


@dataclass(frozen=True)
class Declared:
    """What a child looks for: anything that has a spec."""

    spec: Spec


def exits() -> None:
    os._exit(7)


async def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def innocent() -> int:
    print("what a handler prints must not disturb the talk with the worker")
    return os.getpid()


async def innocent_coroutine(ctx: Context) -> str:
    await asyncio.sleep(0)
    return ctx.id


def fails() -> None:
    raise ValueError("as always")


def hangs(ctx: Context) -> None:
    ctx.progress(0.25, "hanging")
    threading.Event().wait()


def watches(ctx: Context) -> None:
    """Ends when it sees that it should."""
    ctx.progress(0.25, "watching")
    pause = threading.Event()
    while not ctx.cancelled:
        pause.wait(0.01)


def forks_and_hangs(ctx: Context) -> None:
    """Like a pool of processes: its own children have everything it has, also what is open."""
    if os.fork() == 0:
        threading.Event().wait()
    ctx.progress(0.25, "hanging")
    threading.Event().wait()


def forks_and_exits() -> None:
    if os.fork() == 0:
        threading.Event().wait()
    os._exit(7)


async def leaves_a_thread() -> str:
    """Its loop cannot be closed: what it started goes on for ever."""
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    return "done"


EXITS = Declared(spec(exits))
IS_KILLED = Declared(spec(is_killed))
INNOCENT = Declared(spec(innocent))
INNOCENT_COROUTINE = Declared(spec(innocent_coroutine))
FAILS = Declared(spec(fails, retries=[1000]))
HANGS = Declared(spec(hangs))
WATCHES = Declared(spec(watches))
FORKS_AND_HANGS = Declared(spec(forks_and_hangs))
FORKS_AND_EXITS = Declared(spec(forks_and_exits))
LEAVES_A_THREAD = Declared(spec(leaves_a_thread))
HANGS_BRIEFLY = Declared(spec(hangs, "hangs_briefly", timeout=5.0, retries=[1000]))

ALL = {
    declared.spec.name: declared.spec
    for declared in (
        EXITS,
        IS_KILLED,
        INNOCENT,
        INNOCENT_COROUTINE,
        FAILS,
        HANGS,
        HANGS_BRIEFLY,
        WATCHES,
        FORKS_AND_HANGS,
        FORKS_AND_EXITS,
        LEAVES_A_THREAD,
    )
}
