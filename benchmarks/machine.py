"""Where the figures come from: the machine, and how busy it is."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
