"""What every place where attempts run needs of its worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.core.job import Outcome
from penstock.worker.attempt import Attempt
from penstock.worker.gate import Gate
from penstock.worker.runner import Runner


@dataclass(frozen=True, slots=True)
class Means:
    """Both calls are made on the worker's loop."""

    runner: Runner
    gate: Gate
    clock: Clock
    begun: Callable[[Attempt], None]
    """Told of each watched attempt that has started."""
    finished: Callable[[Attempt, Outcome | None], None]
    """Told of each attempt that has ended; without an outcome, nobody wants to know it."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """The slots that are kept, by priority."""
