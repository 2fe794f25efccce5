"""What the parts of one worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.core.spec import Spec
from penstock.worker.inflight import Inflight
from penstock.worker.log import Journal
from penstock.worker.pool import StartGate
from penstock.worker.settings import WorkerSettings
from penstock.worker.status import Parent, Stats, StoreTime


@dataclass(frozen=True, slots=True)
class Tools:
    """One of each per run of a worker."""

    specs: Mapping[str, Spec]
    settings: WorkerSettings
    clock: Clock
    gate: StartGate
    inflight: Inflight
    time: StoreTime
    stats: Stats
    journal: Journal
    parent: Parent
    worker: Callable[[], str]
    """The worker's present id."""
    wake: Callable[[], None]
    """There is something to send, or room for more."""
