"""Tasks for children: this module is imported by the child processes that run them."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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


# --- tasks with isolation="process" -------------------------------------------------------------


def pid() -> int:
    return os.getpid()


async def pid_of_coroutine() -> int:
    await asyncio.sleep(0)
    return os.getpid()


async def loop_of_coroutine() -> int:
    return id(asyncio.get_running_loop())


async def waits(ctx: Context) -> None:
    """Ends only by being cancelled."""
    ctx.progress(0.25, "waiting")
    await asyncio.Event().wait()


def spins(rounds: int) -> int:
    """Takes a little while, and never waits."""
    for _ in range(rounds):
        pass
    return rounds


def echoes(text: str) -> str:
    return text


def reports_once(ctx: Context) -> None:
    """Ends before anybody has looked for progress."""
    ctx.progress(0.75, "almost")


def shows_life(ctx: Context, to: str) -> None:
    """Shows signs of life, of which none is progress, until it is told to end."""
    pause = threading.Event()
    while not os.path.exists(to):
        ctx.alive()
        pause.wait(0.01)


def logs_life(to: str) -> None:
    """The same, only that it knows nothing of contexts."""
    pause, log = threading.Event(), logging.getLogger("victims")
    log.setLevel(logging.DEBUG)
    while not os.path.exists(to):
        log.debug("still there")
        pause.wait(0.01)


def reads_and_prints() -> list[str]:
    print("printed" * 10_000)
    os.write(1, b"written below Python")
    return sys.stdin.readlines()


def swells(ctx: Context) -> None:
    """Takes more memory than it may, and keeps it."""
    taken = b"x" * 300_000_000
    ctx.progress(0.1, f"has {len(taken)}")
    threading.Event().wait()


def locks(path: str, then: str) -> int:
    """Has a lock on a file until its process dies, and so has a process that it starts."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fork() == 0:
        threading.Event().wait()
    if then == "hang":
        with open(f"{path}.has", "w"):
            threading.Event().wait()
    return os.getpid()


def misbehaves() -> int:
    """Leaves behind what it should not have touched."""
    os.chdir("/")
    sys.stdout = open(os.devnull, "w")
    asyncio.set_event_loop(None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=threading.Event().wait).start()
    for _ in range(20):
        os.open(os.devnull, os.O_RDONLY)
    return os.getpid()


async def stops_its_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


def closes_all_files() -> None:
    os.closerange(3, 256)


def writes_anywhere() -> None:
    """Whatever is open, it writes there."""
    for number in range(3, 32):
        with suppress(OSError):
            os.write(number, b"\xff" * 64)
    threading.Event().wait()


def forks_a_pool() -> int:
    """Its own children must end when they are told, and must not be taken for it."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(abs, [-1, -2]))


def terminates_what_it_starts() -> int:
    """How a process ends that is told to: it must not have learned to ignore that."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.terminate()
        return process.wait()


def isolated(function: Callable[..., Any], name: str = "", **fields: Any) -> Declared:
    fields.setdefault("retries", 0)
    return Declared(
        spec(function, name or f"isolated.{function.__name__}", isolation="process", **fields)
    )


PID = isolated(pid)
PID_OF_COROUTINE = isolated(pid_of_coroutine)
LOOP_OF_COROUTINE = isolated(loop_of_coroutine)
WAITS = isolated(waits)
SPINS = isolated(spins, timeout=1000.0)
ECHOES = isolated(echoes, max_result=1 << 22)
REPORTS_ONCE = isolated(reports_once)
SHOWS_LIFE = isolated(shows_life)
LOGS_LIFE = isolated(logs_life)
READS_AND_PRINTS = isolated(reads_and_prints)
SWELLS = isolated(swells, max_memory=150_000_000)
LOCKS = isolated(locks)
MISBEHAVES = isolated(misbehaves)
STOPS_ITS_LOOP = isolated(stops_its_loop)
CLOSES_ALL_FILES = isolated(closes_all_files)
WRITES_ANYWHERE = isolated(writes_anywhere)
TERMINATES_WHAT_IT_STARTS = isolated(terminates_what_it_starts)
FORKS_A_POOL = isolated(forks_a_pool)
ISOLATED_EXITS = isolated(exits)
ISOLATED_IS_KILLED = isolated(is_killed)
ISOLATED_FAILS = isolated(fails, retries=[1000])
ISOLATED_HANGS = isolated(hangs, timeout=1000.0)
ISOLATED_WATCHES = isolated(watches)

# --- others -------------------------------------------------------------------------------------

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
