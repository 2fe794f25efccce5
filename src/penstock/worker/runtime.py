"""The process a worker runs in: its memory, its garbage collection, its event loop."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


def resident(pid: int) -> int | None:
    """Bytes of memory that a process has; None: it is gone, or this machine does not tell.

    Linux tells by itself; elsewhere psutil does, if it is installed.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _page()
    except (OSError, IndexError, ValueError):
        return _asked(pid)


def is_measurable() -> bool:
    """This machine tells how much memory a process has."""
    return resident(os.getpid()) is not None


@cache
def _page() -> int:
    return os.sysconf("SC_PAGE_SIZE")


@cache
def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def _asked(pid: int) -> int | None:
    psutil = None if os.path.isdir("/proc/self") else _psutil()
    if psutil is None:
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


@contextmanager
def spared() -> Iterator[None]:
    """Let garbage collections pass over what is there now, for the time of the block; what of it
    becomes garbage stays until then. For a process that is a worker and nothing else.

    Now and then Python searches all objects for unreachable cycles. Nearly all that a worker
    process has are modules, classes and functions, which stay as long as it lives; to look at them
    again takes tens of milliseconds, in a large application hundreds, and meanwhile no job starts.

    An application that has switched them off has decided, and is left alone.
    """
    if not gc.isenabled():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loops that are ours alone: uvloop's, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
