"""How a supervisor's processes are doing, in one line."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.units import text
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_process import Member


class Tally:
    """Sums up what processes have told, the dead ones' counts included."""

    def __init__(self) -> None:
        self._dead = Pulse(worker="")
        self._last: tuple[float, int] | None = None

    def bury(self, member: Member) -> None:
        """Keep what a dead process has done."""
        self._dead = _sum((self._dead, _ended(member.pulse)))

    def counts(self, members: Iterable[Member]) -> Pulse:
        """All of it as one pulse; its lag is the longest."""
        return _sum((self._dead, *(member.pulse for member in members)))

    def line(self, members: Iterable[Member], now: float) -> str:
        """The line; jobs per second are those since the last one."""
        those = list(members)
        sums = self.counts(those)
        done = sums.succeeded + sums.failed
        words = [
            _counted(len(those), "process", "processes"),
            f"{sums.running} running",
            f"{sums.waiting} waiting",
            f"{done} done",
            f"{sums.failed} failed",
            f"{sums.retried} retried",
        ]
        if self._last is not None and now > self._last[0]:
            rate = max(0, done - self._last[1]) / (now - self._last[0])
            words.append(f"{rate:.1f}/s")
        self._last = now, done
        if sums.lag > 1.0:
            words.append(f"a loop is {text(round(sums.lag, 1))} late")
        return ", ".join(words)


def _sum(pulses: Iterable[Pulse]) -> Pulse:
    those = list(pulses)
    return Pulse(
        worker="",
        running=sum(pulse.running for pulse in those),
        waiting=sum(pulse.waiting for pulse in those),
        lag=max(pulse.lag for pulse in those),
        claimed=sum(pulse.claimed for pulse in those),
        succeeded=sum(pulse.succeeded for pulse in those),
        failed=sum(pulse.failed for pulse in those),
        retried=sum(pulse.retried for pulse in those),
    )


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _ended(pulse: Pulse) -> Pulse:
    return msgspec.structs.replace(pulse, running=0, waiting=0, lag=0.0)
