"""Penstock on a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import uvloop

from benchmarks.contenders.contender import Answer
from benchmarks.contenders.penstock_contender import PenstockContender


class PenstockPostgres(PenstockContender):
    """The contender."""

    engine = "postgres"

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return uvloop.run(work)
