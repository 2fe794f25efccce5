"""The task queues that are measured, by the engine they run on.

To add one, write a subclass of ``Contender`` beside these and name it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders.contender import Contender, Kind

ENGINES: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {"penstock": "PenstockSqlite", "huey": "HueySqlite"},
}


def opened(engine: str, name: str, place: Path, kind: Kind) -> Contender:
    """A contender whose store is in ``place``. Only its own packages are imported."""
    module: Any = import_module(f"benchmarks.contenders.{name}_{engine}")
    contender: Contender = getattr(module, ENGINES[engine][name])(place, kind)
    return contender
