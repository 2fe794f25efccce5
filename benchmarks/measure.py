"""One measurement in a process of its own; prints its figures as JSON, on the last line."""

from __future__ import annotations

import argparse
import json

from benchmarks.contenders import opened
from benchmarks.locations import location_for
from benchmarks.scenario import Scale
from benchmarks.scenarios import loaded
from benchmarks.server import server_for


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument("scenario")
    parser.add_argument("contender")
    parser.add_argument("--engine", default="sqlite")
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    scenario = loaded(given.scenario)
    with server_for(given.engine), location_for(given.engine) as location:
        contender = opened(given.engine, given.contender, str(location), scenario.kind)
        try:
            figures = scenario.run(contender, Scale(given.scale))
        finally:
            contender.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
