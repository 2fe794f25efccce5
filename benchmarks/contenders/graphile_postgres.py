"""graphile-worker in Node, with everything in batches; it removes what it has done.

Its part is in ``benchmarks/graphile``; each call is a line to that process and one back.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.contenders.contender import Contender, Kind
from benchmarks.locations import Location

SCRIPT = Path(__file__).parents[1] / "graphile" / "contender.js"


class GraphilePostgres(Contender):
    """The contender."""

    engine = "postgres"
    name = "graphile"
    statement = ""

    def __init__(self, location: Location, kind: Kind) -> None:
        super().__init__(location, kind)
        self._command = ["node", str(SCRIPT), location.url(self.name)]
        self._node: subprocess.Popen[str] | None = None

    def enqueue(self, number: int) -> None:
        self._ask("enqueue", 1)

    async def aenqueue(self, number: int) -> None:
        raise NotImplementedError("its calls from Python wait for one another")

    def enqueue_many(self, count: int) -> None:
        self._ask("enqueue", count)

    def drain(self, count: int) -> float:
        return self._ask("drain")

    def enqueue_stamp(self, delay: float = 0.0) -> None:
        self._ask("enqueue_stamp", 1)

    def enqueue_stamps(self, count: int) -> None:
        self._ask("enqueue_stamp", count)

    def serve(self) -> None:
        os.execvp("node", [*self._command, "serve"])

    def left(self) -> int:
        return int(self._ask("left"))

    def close(self) -> None:
        if self._node is not None:
            self._node.communicate()

    def _ask(self, verb: str, count: int = 0) -> float:
        if self._node is None:
            command = [*self._command, "answer"]
            pipe = subprocess.PIPE
            self._node = subprocess.Popen(command, text=True, bufsize=1, stdin=pipe, stdout=pipe)
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps([verb, count]) + "\n")
        line = self._node.stdout.readline()
        assert line, f"{' '.join(self._command)} has ended"
        return float(json.loads(line))
