"""How long processes have cpu_seconds, as Linux tells: what a busy machine changes least."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from benchmarks.locations import SERVER

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Seconds of a process, of all that it has started, and of those that have ended since."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    own = sum(int(field) for field in fields[11:15]) / _TICK
    return own + sum(cpu_seconds(int(child)) for child in children)


def server_pid() -> int:
    """The first process of the PostgreSQL server, which runs on this machine."""
    with psycopg.connect(os.environ[SERVER]) as connection:
        status = Path(f"/proc/{connection.info.backend_pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])
