"""A worker process of the shop: ``python -m processes.serve CONCURRENCY LEASE [LOSE]``.

With LOSE, every exchange of that number loses its reply after the commit.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange
from penstock.errors import EngineUnavailable
from penstock.stores import StoreOpener
from penstock.testing import Faulty
from processes.shop import app


class Losing(Faulty):
    """The store does as it is told, but its answer does not always arrive."""

    def __init__(self, inner: Engine, lose: int) -> None:
        super().__init__(inner)
        self._lose = lose
        self._exchanges = 0

    async def exchange(self, ask: Ask) -> Exchange:
        answer = await super().exchange(ask)
        self._exchanges += 1
        if self._exchanges % self._lose == 0:
            raise EngineUnavailable("the store", "the reply was lost")
        return answer


def losing(connect: Callable[[], Engine], lose: int) -> Callable[[], Engine]:
    return lambda: Losing(connect(), lose)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    concurrency, lease, lose = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    if lose:
        here = app._source.opener
        app._source.put(StoreOpener(losing(here.connect, lose), here.clock))
    app.run_worker(concurrency=concurrency, threads=4, lease=lease, drain=20)
