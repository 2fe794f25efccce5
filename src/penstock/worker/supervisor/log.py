"""The log lines of a supervisor: one function per event, the event's name first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.core.job import Job
from penstock.core.units import text
from penstock.errors import ProcessFailed
from penstock.logs import say, say_rescued
from penstock.worker.status import Pulse

_log: Final = logging.getLogger("penstock.supervisor")


# --- the supervisor -----------------------------------------------------------------------------


def ready(processes: int, queues: Sequence[str], store: str) -> None:
    noun = "process" if processes == 1 else "processes"
    event = f"penstock worker ready: {processes} {noun}, queues {','.join(queues)}, {store}"
    say(_log, logging.INFO, event)


def warned(warning: str) -> None:
    say(_log, logging.WARNING, warning)


def status(line: str) -> None:
    say(_log, logging.INFO, f"status: {line}")


def draining(why: str, seconds: float) -> None:
    event = f"stopping ({why}): running attempts may go on for {text(seconds)}"
    say(_log, logging.INFO, f"{event}; press Ctrl-C again to stop at once")


def forcing(why: str) -> None:
    say(_log, logging.WARNING, f"stopping now ({why}): running attempts are given back")


def killing(why: str) -> None:
    say(_log, logging.WARNING, f"killing all processes ({why})")


def gave_up(why: str) -> None:
    _say_quoted(logging.CRITICAL, "gave up", why)


def ended(total: Pulse) -> None:
    done = total.succeeded + total.failed
    event = f"penstock worker ended: {done} done, {total.failed} failed, {total.retried} retried"
    say(_log, logging.INFO, event)


# --- new code -----------------------------------------------------------------------------------


def reloading(signal: str) -> None:
    say(_log, logging.INFO, "replacing all processes", signal=signal)


def code_changed(files: Sequence[str]) -> None:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    say(_log, logging.INFO, f"code changed: {files[0]}{more}")


def code_not_watched(error: Exception) -> None:
    event = f"changes of the code are not seen any more: {error}; SIGHUP brings new code"
    say(_log, logging.ERROR, event)


# --- processes ----------------------------------------------------------------------------------


def process_started(pid: int) -> None:
    say(_log, logging.DEBUG, "process started", pid=pid)


def process_ended(pid: int, how: str, *, is_expected: bool) -> None:
    level = logging.DEBUG if is_expected else logging.WARNING
    say(_log, level, f"process {how}", pid=pid)


def process_replaced(old: int, new: int, reason: str) -> None:
    say(_log, logging.INFO, "process replaced", old=old, new=new, reason=reason)


def not_replaced(why: str) -> None:
    _say_quoted(logging.ERROR, "no replacement, the old process goes on", why)


def starts_again(pause: float, why: str) -> None:
    _say_quoted(logging.ERROR, f"process starts again in {text(pause)}", why)


def waits_for_change(why: str) -> None:
    _say_quoted(logging.ERROR, "waiting for a change of the code", why)


def slow_to_load(pid: int, seconds: float) -> None:
    event = (
        f"the application is still being loaded after {text(round(seconds))}: "
        "is there something in it that waits or serves when it is imported?"
    )
    say(_log, logging.WARNING, event, pid=pid)


def overdue(pid: int) -> None:
    say(_log, logging.WARNING, "process did not end in time and is killed", pid=pid)


def hung(pid: int, worker: str, seconds: float) -> None:
    event = f"process gave no sign of life for {text(seconds)} and is killed"
    say(_log, logging.ERROR, event, pid=pid, worker=worker)


# --- their leases in the store ------------------------------------------------------------------


def cleaned_up(worker: str, outcomes: int, rescued: int) -> None:
    if outcomes or rescued:
        event = "dead worker seen to"
        say(_log, logging.INFO, event, worker=worker, settled=outcomes, rescued=rescued)


def rescued(jobs: Sequence[Job]) -> None:
    say_rescued(_log, jobs)


def left_to_leader(worker: str, why: Exception | str) -> None:
    say(_log, logging.WARNING, f"dead worker left to the leader: {why}", worker=worker)


def store_unavailable(verb: str, error: Exception, *, is_news: bool) -> None:
    level = logging.WARNING if is_news else logging.DEBUG
    say(_log, level, f"store unavailable: {error}", verb=verb)


def store_available() -> None:
    say(_log, logging.INFO, "store available again")


def _say_quoted(level: int, event: str, why: str) -> None:
    """Write what a process said; a traceback in it is shown as one."""
    if "\n" in why:
        say(_log, level, event, exc_info=ProcessFailed(why))
    else:
        say(_log, level, f"{event}: {why}")
