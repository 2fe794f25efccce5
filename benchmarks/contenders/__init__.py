"""The task queues that are measured, by the engine they run on.

To add one, write a subclass of ``Contender`` beside these and name it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from benchmarks.contenders.contender import Contender, Kind
from benchmarks.locations import LOCATIONS

ENGINES: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {"penstock": "PenstockSqlite", "huey": "HueySqlite"},
    "postgres": {
        "penstock": "PenstockPostgres",
        "pgqueuer": "PgqueuerPostgres",
        "procrastinate": "ProcrastinatePostgres",
        "oban": "ObanPostgres",
        "chancy": "ChancyPostgres",
        "graphile": "GraphilePostgres",
    },
    "memory": {"penstock": "PenstockMemory"},
}

PYTHON_PEERS: Final = ("pgqueuer", "procrastinate", "oban", "chancy")
"""Those on PostgreSQL that are written in Python."""


def opened(engine: str, name: str, location: str, kind: Kind) -> Contender:
    """A contender whose stores are in ``location``. Only its own packages are imported."""
    module: Any = import_module(f"benchmarks.contenders.{name}_{engine}")
    contender: Contender = getattr(module, ENGINES[engine][name])(LOCATIONS[engine](location), kind)
    return contender
