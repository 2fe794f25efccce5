"""How much memory a process has in use."""

from __future__ import annotations

import os
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
