"""What the parts of one worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.core.spec import Spec
from penstock.worker.inflight import Hands
from penstock.worker.log import Journal
from penstock.worker.pool import Gate
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import Overseer, Stats, StoreTime


@dataclass(frozen=True, slots=True)
class Tools:
    """One of each per run of a worker."""

    specs: Mapping[str, Spec]
    settings: WorkerSettings
    clock: Clock
    gate: Gate
    hands: Hands
    time: StoreTime
    stats: Stats
    journal: Journal
    overseer: Overseer
    worker: Callable[[], str]
    """The worker's present id."""
    wake: Callable[[], None]
    """There is something to send, or room for more."""
