"""What a worker asks the store for: as many jobs as there is room for, of tasks that have some."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.spec import KINDS, Kind
from penstock.worker.appetite import Appetite, Meal, Room, full_kinds
from penstock.worker.attempt import Attempt
from penstock.worker.pool import Pool
from penstock.worker.reserve import ANY, free_for
from penstock.worker.tools import Tools


class Menu:
    """Looks at the pools of a crew, each for one kind of tasks."""

    def __init__(self, tools: Tools, pools: Mapping[Kind, Pool]) -> None:
        self._tools = tools
        self._gate = tools.gate
        self._pools = pools
        self._names: dict[Kind, frozenset[str]] = {
            kind: frozenset(name for name, spec in tools.specs.items() if spec.kind == kind)
            for kind in KINDS
        }
        self.appetite = Appetite(tools.settings.prefetch)
        self.unknown: set[str] = set()
        """Tasks of jobs that came and that this process does not have."""

    def meal(self, *, may_pass_over: bool) -> Meal:
        """How many jobs to ask for now."""
        if self._gate.alone is not None or not self._gate.is_trusted:
            return Meal()
        meal = self.appetite.meal(self._rooms(ANY), may_pass_over=may_pass_over)
        if meal.want == 0 and self._tools.settings.reserve:
            return self._urgent_meal(may_pass_over=may_pass_over)
        return meal

    def _urgent_meal(self, *, may_pass_over: bool) -> Meal:
        """What to ask for when only slots are free that are kept for urgent jobs."""
        for level in sorted(self._tools.settings.reserve, reverse=True):
            rooms = self._rooms(level)
            full = full_kinds(rooms)
            slots = min(room.free for kind, room in rooms.items() if kind not in full)
            if slots and (may_pass_over or not full):
                return Meal(slots, slots, full, level)
        return Meal()

    @property
    def is_half_full(self) -> bool:
        """One kind of tasks has no free slot while another one has, for jobs of some priority."""
        return any(full_kinds(self._rooms(level)) for level in (ANY, *self._tools.settings.reserve))

    def _rooms(self, priority: float) -> dict[Kind, Room]:
        """The room for jobs of a priority, by kind: what waits and is less urgent takes none."""
        kinds = [kind for kind in KINDS if self._names[kind]] or KINDS[:1]
        pools = {kind: self._pools[kind] for kind in kinds}
        kept = self._tools.settings.reserve
        if not kept:
            return {kind: Room(pool.size, pool.load) for kind, pool in pools.items()}
        there = list(self._tools.hands)
        rooms = {}
        for kind, pool in pools.items():
            here = [each for each in there if each.pool is pool]
            before = [each for each in here if not _comes_after(each, priority)]
            load = pool.load - (len(here) - len(before))
            free = free_for(priority, pool.size, kept, [each.job.priority for each in before])
            rooms[kind] = Room(load + min(pool.size - load, free), load)
        return rooms

    def passed_over(self, meal: Meal, *, in_full: bool) -> None:
        """A claim that passed over some kinds of tasks was answered."""
        asked = [kind for kind in KINDS if self._names[kind] and kind not in meal.passes_over]
        if len(asked) == 1 and meal.least_urgent is None:
            was_idle = meal.slots == self._pools[asked[0]].size
            self.appetite.passed_over(asked[0], was_idle=was_idle, in_full=in_full)

    def avoid(self, meal: Meal) -> frozenset[str]:
        """The tasks whose jobs should go to others."""
        full = frozenset[str]().union(*(self._names[kind] for kind in meal.passes_over))
        return full.union(self.unknown) if self.unknown else full


def _comes_after(attempt: Attempt, priority: float) -> bool:
    """It waits, and lets a job of this priority go first."""
    return attempt.is_waiting and attempt.job.priority > priority
