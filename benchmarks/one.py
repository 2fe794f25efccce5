"""One measurement in a process of its own: ``python -m benchmarks.one CONTENDER SCENARIO``."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.measures import SCENARIOS

CONTENDERS = {
    "penstock": ("benchmarks.penstock_sqlite", "PenstockSqlite"),
    "huey": ("benchmarks.huey_sqlite", "HueySqlite"),
}


def main(name: str, scenario: str) -> None:
    """Print the figure."""
    module, kind = CONTENDERS[name]
    with tempfile.TemporaryDirectory() as place:
        sync = scenario == "drain_threads"
        contender = getattr(import_module(module), kind)(Path(place), sync=sync)
        try:
            print(SCENARIOS[scenario](contender))
        finally:
            contender.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
