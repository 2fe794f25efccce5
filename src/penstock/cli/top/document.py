"""A view as data: what ``penstock top --json`` prints, and the plain tables of ``--once``."""

from __future__ import annotations

from typing import Any, Final

from penstock.cli.output import Column, print_line, print_table
from penstock.cli.times import iso, rough
from penstock.cli.top.view import View, why_failed
from penstock.core.job import Job

ROWS: Final = 20
"""Running jobs, and failed ones, that one screen shows."""


def document(view: View) -> dict[str, Any]:
    """One snapshot. Rates are per second, over ``window`` seconds up to ``at``."""
    return {
        "at": iso(view.seen.now),
        "store": view.store,
        "window": view.window,
        "leader": view.leader,
        "queues": [
            {
                "name": row.name,
                "paused": row.settings.paused,
                "note": row.settings.note,
                "ready": row.ready,
                "scheduled": row.scheduled,
                "running": row.running,
                "held": row.held,
                "failed": row.failed,
                "entered_per_second": view.rate(row.traffic.entered),
                "succeeded_per_second": view.rate(row.traffic.succeeded),
                "failed_per_second": view.rate(row.traffic.failed),
                "cancelled_per_second": view.rate(row.traffic.cancelled),
            }
            for row in view.queues
        ],
        "workers": [
            {
                "worker": row.info.id,
                "host": row.info.host,
                "pid": row.info.pid,
                "slots": row.info.slots,
                "busy": row.busy,
                "beat": row.info.beat,
                "still": row.still,
                "joined_at": iso(row.info.joined_at),
            }
            for row in view.workers
        ],
        "running": [
            {
                **_job(job),
                "worker": job.worker,
                "claimed_at": iso(job.claimed_at),
                "progress": job.progress,
                "note": job.note,
            }
            for job in view.seen.running
        ],
        "failed": [
            {**_job(job), "finished_at": iso(job.finished_at), "reason": why_failed(job)}
            for job in view.seen.failed
        ],
    }


def _job(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "key": job.key,
        "attempt": job.attempt,
    }


def print_once(view: View) -> None:
    """Print everything, one table after the other."""
    seen, total = view.seen, view.total
    print_line(f"{view.store}, {iso(seen.now)}")
    print_line(
        f"{view.rate(total.succeeded):.1f} done/s, {view.rate(total.failed):.1f} failed/s "
        f"over the last {view.window:g} s; leader: {view.leader or 'none'}"
    )
    print_line()
    names = ("READY", "SCHEDULED", "RUNNING", "HELD", "FAILED", "IN/S", "DONE/S")
    print_table(
        [
            Column("QUEUE", shrink=True),
            *(Column(name, "right") for name in names),
            Column("", shrink=True),
        ],
        [
            (
                row.name,
                *map(str, (row.ready, row.scheduled, row.running, row.held, row.failed)),
                f"{view.rate(row.traffic.entered):.1f}",
                f"{view.rate(row.traffic.succeeded):.1f}",
                _paused(row.settings.paused, row.settings.note),
            )
            for row in view.queues
        ],
    )
    print_line()
    print_table(
        [Column("WORKER"), Column("HOST"), Column("PID", "right"), Column("SLOTS")],
        [
            (row.info.id, row.info.host, str(row.info.pid), f"{row.busy} of {row.info.slots}")
            for row in view.workers
        ],
    )
    print_line()
    columns = [Column("RUNNING"), Column("ID"), Column("KEY"), Column("FOR", "right")]
    print_table(
        [*columns, Column("PROGRESS", "right"), Column("NOTE", shrink=True)],
        [
            (
                job.task,
                job.id,
                job.key or "",
                rough(max(0.0, seen.now - (job.claimed_at or seen.now))),
                "" if job.progress is None else f"{job.progress:.0%}",
                job.note or "",
            )
            for job in seen.running[:ROWS]
        ],
    )
    print_line()
    print_table(
        [Column("FAILED"), Column("ID"), Column("AGO", "right"), Column("ERROR", shrink=True)],
        [
            (
                job.task,
                job.id,
                rough(max(0.0, seen.now - (job.finished_at or seen.now))),
                why_failed(job),
            )
            for job in seen.failed[:ROWS]
        ],
    )


def _paused(paused: bool, note: str | None) -> str:
    if not paused:
        return ""
    return f"paused: {note}" if note else "paused"
