"""Where the figures come from: the machine, and the versions of what is measured."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("penstock", "msgspec", "uvloop", "huey")


def machine() -> dict[str, Any]:
    """The machine and how busy it is now."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / (1 << 30), 1),
        "load": load(),
    }


def load() -> list[float]:
    """How many processes wanted to run, over the last 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]


def versions() -> dict[str, str]:
    """Python, SQLite, and the packages that are there."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        **dict(_installed(PACKAGES)),
    }


def _installed(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in names:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            pass


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
