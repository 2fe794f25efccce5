"""Why a waiting job may not start: each kind of hold, and the cause that keeps it.

A hold has an instant, at which it is over, or a cause. A hold whose cause is gone is lifted by the
process that removed the cause; ``changes.repair_holds`` looks for those that a lost step has left.
A kind without a rule here is left alone by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.core.job import Hold, Job


@dataclass(frozen=True, slots=True)
class Facts:
    """What the causes of holds depend on."""

    tasks: frozenset[str]
    """The tasks that a worker with a lease knows."""


def _is_unknown(job: Job, facts: Facts) -> bool:
    return job.task not in facts.tasks


CAUSES: Final[Mapping[Hold, Callable[[Job, Facts], bool]]] = MappingProxyType(
    {Hold.UNKNOWN_TASK: _is_unknown}
)
"""Whether the cause of a job's hold stands, by the kind of hold."""


def has_cause(job: Job, facts: Facts) -> bool:
    """The job's hold is over at an instant, or what it is held for still stands."""
    if job.hold is None:
        return False
    rule = CAUSES.get(job.hold)
    return job.hold_until is not None or rule is None or rule(job, facts)
