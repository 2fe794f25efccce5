"""The status line of a supervisor: the counts of all its processes, dead ones included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.core.units import text
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_process import ReplicaProcess


class StatusTotals:
    """Sums up the last pulses of the processes, and what dead ones have done."""

    def __init__(self) -> None:
        self._dead = Pulse(worker="")
        self._last: tuple[float, int] | None = None

    def add_dead(self, process: ReplicaProcess) -> None:
        """Keep what a dead process has done."""
        self._dead = _sum((self._dead, process.last_pulse()))

    def total(self, living: Iterable[ReplicaProcess] = ()) -> Pulse:
        """All of it as one pulse; its lag is the longest."""
        return _sum((self._dead, *(process.pulse for process in living)))

    def counts(self, living: Iterable[ReplicaProcess], now: float) -> dict[str, Any]:
        """The fields of the status line; ``per_second`` counts what ended since the last one."""
        processes = list(living)
        total = self.total(processes)
        counts: dict[str, Any] = {
            "processes": len(processes),
            "running": total.running,
            "waiting": total.waiting,
            "succeeded": total.succeeded,
            "failed": total.failed,
            "retried": total.retried,
        }
        ended = total.succeeded + total.failed
        if self._last is not None and now > self._last[0]:
            rate = max(0, ended - self._last[1]) / (now - self._last[0])
            counts["per_second"] = round(rate, 1)
        self._last = now, ended
        if total.lag > 1.0:
            counts["loop_late"] = text(round(total.lag, 1))
        return counts


def _sum(pulses: Iterable[Pulse]) -> Pulse:
    each = list(pulses)
    return Pulse(
        worker="",
        running=sum(pulse.running for pulse in each),
        waiting=sum(pulse.waiting for pulse in each),
        lag=max(pulse.lag for pulse in each),
        claimed=sum(pulse.claimed for pulse in each),
        succeeded=sum(pulse.succeeded for pulse in each),
        failed=sum(pulse.failed for pulse in each),
        retried=sum(pulse.retried for pulse in each),
    )
