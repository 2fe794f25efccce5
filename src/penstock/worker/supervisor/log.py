"""What a supervisor says in the log: one line per event, the event's name first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.core.units import text
from penstock.errors import ProcessFailed
from penstock.logs import say
from penstock.worker.status import Pulse

_log: Final = logging.getLogger("penstock.supervisor")


class StaffJournal:
    """The log of one supervisor."""

    def __init__(self) -> None:
        self._is_away = False

    def ready(self, processes: int, queues: Sequence[str], store: str) -> None:
        """All processes have joined."""
        noun = "process" if processes == 1 else "processes"
        event = f"penstock worker ready: {processes} {noun}, queues {','.join(queues)}, {store}"
        say(_log, logging.INFO, event)

    def status(self, line: str) -> None:
        """How it goes."""
        say(_log, logging.INFO, f"status: {line}")

    def started(self, pid: int) -> None:
        """A process begins."""
        say(_log, logging.DEBUG, "process started", pid=pid)

    def ended(self, pid: int, how: str, *, is_expected: bool) -> None:
        """A process is over."""
        level = logging.DEBUG if is_expected else logging.WARNING
        say(_log, level, f"process {how}", pid=pid)

    def replaced(self, old: int, new: int, reason: str) -> None:
        """Another process has taken over; the old one ends when its attempts have."""
        say(_log, logging.INFO, "process replaced", old=old, new=new, reason=reason)

    def no_heir(self, word: str) -> None:
        """The new process could not take over."""
        _quote(logging.ERROR, "no replacement, the old process goes on", word)

    def starts_again(self, pause: float, word: str) -> None:
        """After a bad run the next one waits."""
        _quote(logging.ERROR, f"process starts again in {text(pause)}", word)

    def waits_for_change(self, word: str) -> None:
        """It is no use to start again before somebody has changed something."""
        _quote(logging.ERROR, "waiting for a change of the code", word)

    def changed(self, files: Sequence[str]) -> None:
        """Somebody has changed something."""
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        say(_log, logging.INFO, f"code changed: {files[0]}{more}")

    def unwatched(self, error: Exception) -> None:
        """The system does not tell any more what has changed."""
        event = f"changes of the code are not seen any more: {error}; SIGHUP brings new code"
        say(_log, logging.ERROR, event)

    def reloading(self, signal: str) -> None:
        """Every process is replaced, one after the other."""
        say(_log, logging.INFO, "replacing all processes", signal=signal)

    def draining(self, why: str, seconds: float) -> None:
        """It is told to stop."""
        event = f"stopping ({why}): running attempts may go on for {text(seconds)}"
        say(_log, logging.INFO, f"{event}; once more gives them back now")

    def forcing(self, why: str) -> None:
        """It is told to stop again."""
        say(_log, logging.WARNING, f"stopping now ({why}): running attempts are given back")

    def killing(self, why: str) -> None:
        """It is told to stop for the third time."""
        say(_log, logging.WARNING, f"killing all processes ({why})")

    def late(self, pid: int, seconds: float) -> None:
        """A process still loads the application."""
        event = (
            f"the application is still being loaded after {text(round(seconds))}: "
            "is there something in it that waits or serves when it is imported?"
        )
        say(_log, logging.WARNING, event, pid=pid)

    def overdue(self, pid: int) -> None:
        """A process did not end in time."""
        say(_log, logging.WARNING, "process did not end in time and is killed", pid=pid)

    def hung(self, pid: int, worker: str, seconds: float) -> None:
        """A process shows no sign of life."""
        event = f"process gave no sign of life for {text(seconds)} and is killed"
        say(_log, logging.ERROR, event, pid=pid, worker=worker)

    def settled(self, worker: str, outcomes: int, rescued: int) -> None:
        """What a dead process has left is seen to."""
        if outcomes or rescued:
            event = "dead worker seen to"
            say(_log, logging.INFO, event, worker=worker, settled=outcomes, rescued=rescued)

    def unsettled(self, worker: str, error: Exception | None) -> None:
        """The rest is for the leader."""
        why = error or "the store is away"
        say(_log, logging.WARNING, f"dead worker left to the leader: {why}", worker=worker)

    def unavailable(self, verb: str, error: Exception) -> None:
        """The store did not do it. Said once aloud, then quietly until it answers again."""
        level = logging.DEBUG if self._is_away else logging.WARNING
        self._is_away = True
        say(_log, level, f"store unavailable: {error}", verb=verb)

    def available(self) -> None:
        """The store answers."""
        if self._is_away:
            self._is_away = False
            say(_log, logging.INFO, "store available again")

    def gave_up(self, why: str) -> None:
        """It cannot become good."""
        _quote(logging.CRITICAL, "gave up", why)

    def over(self, sums: Pulse) -> None:
        """The last word."""
        done = sums.succeeded + sums.failed
        event = f"penstock worker ended: {done} done, {sums.failed} failed, {sums.retried} retried"
        say(_log, logging.INFO, event)


def _quote(level: int, event: str, word: str) -> None:
    """Say what a process said; a traceback in it is shown as one."""
    if "\n" in word:
        say(_log, level, event, exc_info=ProcessFailed(word))
    else:
        say(_log, level, f"{event}: {word}")
