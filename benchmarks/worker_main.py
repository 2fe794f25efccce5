"""``python -m benchmarks.worker_main ENGINE CONTENDER LOCATION KIND``: be a contender's worker."""

from __future__ import annotations

import sys
from typing import cast

from benchmarks.contenders import opened
from benchmarks.contenders.contender import Kind


def main(engine: str, name: str, location: str, kind: str) -> None:
    opened(engine, name, location, cast(Kind, kind)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
