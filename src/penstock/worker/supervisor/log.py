"""The log lines of a supervisor: one function per event, its name first, then its fields."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.core.job import Job
from penstock.core.units import text
from penstock.logs import OutageLog, say, say_rescued
from penstock.worker.status import Pulse

_log: Final = logging.getLogger("penstock.supervisor")


# --- the supervisor -----------------------------------------------------------------------------


def ready(processes: int, tasks: int, queues: Sequence[str], store: str) -> None:
    fields: dict[str, Any] = {"processes": processes, "queues": ",".join(queues)}
    say(_log, logging.INFO, "penstock worker ready", **fields, tasks=tasks, store=store)


def two_stores(warning: str) -> None:
    say(_log, logging.WARNING, "two stores are named", hint=warning)


def status(counts: Mapping[str, Any]) -> None:
    say(_log, logging.INFO, "status", **counts)


def draining(why: str, seconds: float) -> None:
    again = "press Ctrl-C" if why == "Ctrl-C" else f"send {why}"
    hint = f"{again} again to stop at once" if why.startswith(("Ctrl", "SIG")) else None
    fields: dict[str, Any] = {"why": why, "drain": text(seconds)}
    if hint is not None:
        fields["hint"] = hint
    say(_log, logging.INFO, "stopping", **fields)


def forcing(why: str) -> None:
    hint = "running attempts are given back"
    say(_log, logging.WARNING, "stopping now", why=why, hint=hint)


def killing(why: str) -> None:
    say(_log, logging.WARNING, "killing all processes", why=why)


def gave_up(why: str) -> None:
    _say_quoted(logging.CRITICAL, "gave up", why)


def ended(total: Pulse) -> None:
    event, succeeded, failed = "penstock worker ended", total.succeeded, total.failed
    say(_log, logging.INFO, event, succeeded=succeeded, failed=failed, retried=total.retried)


# --- new code -----------------------------------------------------------------------------------


def reloading(signal: str) -> None:
    say(_log, logging.INFO, "replacing all processes", signal=signal)


def code_changed(files: Sequence[str]) -> None:
    say(_log, logging.INFO, "code changed", file=files[0], files=len(files))


def code_not_watched(error: Exception) -> None:
    hint = "send SIGHUP to load new code"
    say(_log, logging.ERROR, "code not watched", error=type(error).__name__, why=error, hint=hint)


# --- processes ----------------------------------------------------------------------------------


def process_started(pid: int) -> None:
    say(_log, logging.DEBUG, "process started", pid=pid)


def process_ended(pid: int, how: str, *, is_expected: bool) -> None:
    level = logging.DEBUG if is_expected else logging.WARNING
    say(_log, level, "process ended", pid=pid, how=how)


def process_replaced(old: int, new: int, reason: str) -> None:
    say(_log, logging.INFO, "process replaced", old=old, new=new, reason=reason)


def not_replaced(why: str) -> None:
    _say_quoted(logging.ERROR, "process not replaced", why, hint="the old process goes on")


def starts_again(pause: float, why: str) -> None:
    _say_quoted(logging.ERROR, "process restarts", why, after=text(pause))


def waits_for_change(why: str) -> None:
    _say_quoted(logging.ERROR, "waiting for a code change", why)


def slow_to_load(pid: int, seconds: float) -> None:
    hint = "does it wait or serve when it is imported?"
    fields: dict[str, Any] = {"pid": pid, "seconds": round(seconds), "hint": hint}
    say(_log, logging.WARNING, "application still loading", **fields)


def overdue(pid: int) -> None:
    say(_log, logging.WARNING, "process killed", pid=pid, why="it did not end in time")


def hung(pid: int, worker: str, seconds: float) -> None:
    why = f"no heartbeat for {text(seconds)}"
    say(_log, logging.ERROR, "process killed", pid=pid, worker=worker, why=why)


# --- their leases in the store ------------------------------------------------------------------


def cleaned_up(worker: str, outcomes: int, rescued: int) -> None:
    if outcomes or rescued:
        event = "dead worker's jobs rescued"
        say(_log, logging.INFO, event, worker=worker, settled=outcomes, rescued=rescued)


def rescued(jobs: Sequence[Job]) -> None:
    say_rescued(_log, jobs)


def left_to_leader(worker: str, why: Exception | str) -> None:
    say(_log, logging.WARNING, "dead worker left to the leader", worker=worker, why=why)


def outage() -> OutageLog:
    """What says once when the store is away, and once when it is back."""
    return OutageLog(_log)


def _say_quoted(level: int, event: str, why: str, **fields: Any) -> None:
    """Write what a process said; a traceback in it is shown as one."""
    line = why.partition("\n")[0] if "\n" in why else why
    say(_log, level, event, trace=why if line != why else None, **fields, why=line)
