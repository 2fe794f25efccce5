"""The status line of a supervisor: the counts of all its processes, dead ones included."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

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
        ended = msgspec.structs.replace(process.pulse, running=0, waiting=0, lag=0.0)
        self._dead = _sum((self._dead, ended))

    def total(self, living: Iterable[ReplicaProcess] = ()) -> Pulse:
        """All of it as one pulse; its lag is the longest."""
        return _sum((self._dead, *(process.pulse for process in living)))

    def line(self, living: Iterable[ReplicaProcess], now: float) -> str:
        """The line; jobs per second are those since the last one."""
        processes = list(living)
        total = self.total(processes)
        done = total.succeeded + total.failed
        parts = [
            f"{len(processes)} {'process' if len(processes) == 1 else 'processes'}",
            f"{total.running} running",
            f"{total.waiting} waiting",
            f"{done} done",
            f"{total.failed} failed",
            f"{total.retried} retried",
        ]
        if self._last is not None and now > self._last[0]:
            rate = max(0, done - self._last[1]) / (now - self._last[0])
            parts.append(f"{rate:.1f}/s")
        self._last = now, done
        if total.lag > 1.0:
            parts.append(f"a loop is {text(round(total.lag, 1))} late")
        return ", ".join(parts)


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
