"""Places in the fair queues of an SQLite store (law 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from sqlite3 import Cursor

from penstock.core import fairness
from penstock.core.job import Hold, Job
from penstock.engines.records import QueueSettings
from penstock.engines.sqlite_rows import Row


class SqlitePlaces:
    """The fair queues inside one transaction: whoever writes is the one placer of every queue."""

    def __init__(
        self,
        run: Callable[..., Cursor],
        run_many: Callable[[str, Iterable[Row]], Cursor],
        sql: Mapping[str, str],
    ) -> None:
        self._run = run
        self._run_many = run_many
        self._sql = sql

    def place(self, settings: Mapping[str, QueueSettings]) -> int:
        """Give every unplaced job of a fair queue its place, in order of arrival."""
        if not any(each.fair for each in settings.values()):
            return 0
        queues = [queue for (queue,) in self._run(self._sql["unplaced_queues"]).fetchall()]
        fair = [queue for queue in queues if queue in settings and settings[queue].fair]
        return sum(self._place(queue, settings[queue].weights) for queue in fair)

    def _place(self, queue: str, weights: Mapping[str, float]) -> int:
        lanes = dict(self._run(self._sql["lanes"], (queue,)).fetchall())
        spots: dict[tuple[int, str], float | None] = {}
        placed: list[Row] = []
        for id, priority, key in self._run(self._sql["unplaced"], (queue,)).fetchall():
            if (priority, key) not in spots:
                row = self._run(self._sql["spot"], (queue, priority, key)).fetchone()
                spots[priority, key] = None if row is None else row[0]
            place = fairness.place(lanes.get(priority, 0.0), spots[priority, key])
            spots[priority, key] = fairness.following(place, weights.get(key, 1.0))
            placed.append((place, id))
        self._run_many(self._sql["place"], placed)
        self._run_many(
            self._sql["set_spot"],
            [(queue, *spot, next_place) for spot, next_place in spots.items()],
        )
        return len(placed)

    def advance(self, claimed: Sequence[Job]) -> None:
        """Move virtual time on to the places that were claimed."""
        self._run_many(
            self._sql["advance_lane"], [(job.queue, job.priority, job.place) for job in claimed]
        )

    def level(self, queue: str) -> None:
        """The queue is no longer fair: places mean nothing, and nobody waits for one."""
        for id, _, of, _ in self._run(self._sql["held_for"], (Hold.UNPLACED,)).fetchall():
            if of == queue:
                self._run(self._sql["unhold"], (id,))
        for statement in ("level", "forget_lanes", "forget_spots"):
            self._run(self._sql[statement], (queue,))
