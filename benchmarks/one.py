"""One measurement in a process of its own; prints its figures as JSON, on the last line."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.contenders import opened
from benchmarks.scenario import Scale
from benchmarks.scenarios import loaded


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one")
    parser.add_argument("scenario")
    parser.add_argument("contender")
    parser.add_argument("--engine", default="sqlite")
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    scenario = loaded(given.scenario)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        contender = opened(given.engine, given.contender, Path(place), scenario.kind)
        try:
            figures = scenario.run(contender, Scale(given.scale))
        finally:
            contender.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
