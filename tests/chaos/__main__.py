"""``python -m chaos sqlite|postgres [--seconds 60] [--seed 7]``: exit code 1 if a promise broke."""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("kind", choices=["sqlite", "postgres"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--torn", choices=["dropping", "forgetting"], help="break the engine")
    given = parser.parse_args()
    seed = SystemRandom().randrange(10_000) if given.seed is None else given.seed
    print(f"chaos on {given.kind}, seed {seed}, {given.seconds:g} s ...", flush=True)
    report = run(given.kind, seed=seed, seconds=given.seconds, torn=given.torn)
    print(report)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
