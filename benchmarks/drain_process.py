"""``python -m benchmarks.drain_process ENGINE CONTENDER LOCATION KIND COUNT``: drain with others.

Says when it is ready, waits for a line, drains, and says when it has nothing left to run.
"""

from __future__ import annotations

import sys
from typing import cast

from benchmarks.contenders import opened
from benchmarks.contenders.contender import Kind


def main(engine: str, name: str, location: str, kind: str, count: str) -> None:
    contender = opened(engine, name, location, cast(Kind, kind))
    contender.left()  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    contender.drain(int(count))
    print("done", flush=True)
    contender.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
