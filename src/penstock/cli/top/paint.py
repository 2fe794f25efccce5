"""The frame of ``penstock top``: queues, what runs, workers, what failed, in the size there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import wrap
from types import MappingProxyType
from typing import Final, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.output import visible
from penstock.cli.times import rough
from penstock.cli.top.panels import Field, Panel, Size, age, bar, cell, number, page, rate
from penstock.cli.top.view import View, WorkerRow, why_failed
from penstock.core.job import Job

Part = Literal["all", "queues", "running", "workers", "failed"]
PARTS: Final[tuple[Part, ...]] = ("all", "queues", "running", "workers", "failed")

TITLES: Final[Mapping[Part, str]] = MappingProxyType(
    {
        "all": "all",
        "queues": "queues",
        "running": "running jobs",
        "workers": "workers",
        "failed": "failed jobs",
    }
)


LONGEST_PAUSED: Final = 16
"""Letters of a paused queue's name, so that its mark is seen."""


@dataclass(frozen=True, slots=True)
class Look:
    """How the person wants to see it."""

    width: int
    height: int
    part: Part = "all"
    is_paused: bool = False
    is_plain: bool = False
    has_keys: bool = True
    trouble: str | None = None
    """Why what is shown is old."""


def frame(view: View, look: Look) -> RenderableType:
    """The whole screen."""
    panels: dict[Part, Panel] = {
        "queues": queues(view),
        "running": running(view, look.width, is_plain=look.is_plain),
        "workers": workers(view, is_plain=look.is_plain),
        "failed": failed(view),
    }
    chosen = list(panels.values()) if look.part == "all" else [panels[look.part]]
    top: list[RenderableType] = [header(view, look.width)]
    if look.trouble is not None:
        lines = wrap(visible(look.trouble), look.width, max_lines=3, placeholder=" …")
        top += [Text(line, "bold red") for line in lines]
    return page(top, chosen, footer(look), Size(look.width, look.height))


def header(view: View, width: int) -> RenderableType:
    """Where, how fast, when."""
    total = view.total
    at = datetime.fromtimestamp(view.glance.now, UTC)
    speed = Text.assemble((f"{view.rate(total.succeeded):.1f}", "bold green"), " done/s")
    if width >= 50:
        failing = "bold red" if total.failed else "bold"
        speed.append_text(Text.assemble("  ", (f"{view.rate(total.failed):.1f}", failing)))
        speed.append(" failed/s")
    if width >= 70:
        speed.append(f"  {at:%H:%M:%S} UTC", "dim")
    name = Text.assemble(("penstock", "bold"), "  ", (visible(view.store), "dim"))
    return sides(name, speed, width)


def sides(left: Text, right: Text, width: int) -> RenderableType:
    """Two texts on one line, at its two ends; the left one is cut if they do not fit."""
    line = Table(box=None, pad_edge=False, padding=0, expand=True, show_header=False)
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True, width=min(right.cell_len + 1, width - 10))
    line.add_row(left, right)
    return line


def footer(look: Look) -> RenderableType:
    """The keys, and what the numbers mean."""
    if not look.has_keys:
        return Text("Ctrl-C ends it", "dim")
    keys = Text.assemble(("q", "bold"), " quit  ", ("p", "bold"))
    keys.append(" go on  " if look.is_paused else " pause  ")
    keys.append("tab", "bold")
    keys.append(f" shows {TITLES[look.part]}")
    if look.is_paused:
        note = Text("PAUSED", "bold yellow")
    else:
        note = Text("rates of the last 10 s" if look.width >= 70 else "", "dim")
    return sides(keys, note, look.width)


# --- the panels ---------------------------------------------------------------------------------


def queues(view: View) -> Panel:
    """One row per queue."""
    fields = (
        Field("QUEUE", is_wide=True),
        Field("READY", "right"),
        Field("SCHEDULED", "right", needs=60),
        Field("RUNNING", "right", needs=32),
        Field("HELD", "right", needs=68),
        Field("FAILED", "right"),
        Field("IN/S", "right", needs=80),
        Field("DONE/S", "right", needs=80),
    )
    rows = []
    for row in view.queues:
        name = cell(row.name)
        if row.settings.paused:
            name.truncate(LONGEST_PAUSED, overflow="ellipsis")
            note = f": {visible(row.settings.note)}" if row.settings.note else ""
            name.append(f"  paused{note}", "bold yellow")
        rows.append(
            (
                name,
                number(row.ready),
                number(row.scheduled),
                number(row.running, "cyan"),
                number(row.held, "yellow"),
                number(row.failed, "red"),
                rate(view.rate(row.traffic.entered)),
                rate(view.rate(row.traffic.succeeded), "green"),
            )
        )
    return Panel(fields, rows, "none yet")


def running(view: View, width: int, *, is_plain: bool) -> Panel:
    """One row per running job, the longest first, and then those that have yet to start."""
    has_keys = any(job.key for job in view.glance.running)
    fields = (
        Field("RUNNING", is_wide=True),
        Field("KEY", needs=90 if has_keys else 10_000, width=12),
        Field("ID", needs=130),
        Field("FOR", "right", width=4),
        Field("PROGRESS", width=16 if width < 100 else 20),
        Field("", is_wide=True, needs=70),
    )
    length = 10 if width < 100 else 14
    rows = []
    for job in sorted(view.glance.running, key=_has_begun, reverse=True):
        since = view.glance.now - (job.claimed_at or view.glance.now)
        rows.append(
            (
                _task(job),
                cell(job.key or ""),
                cell(job.id, "dim"),
                age(since),
                _progress(job, length, is_plain=is_plain),
                cell(job.note or "", "dim"),
            )
        )
    return Panel(fields, rows, "nothing")


def _has_begun(job: Job) -> bool:
    """Of a job that was in a crash the store hears of its start a little later."""
    return job.started or job.progress is not None


def _task(job: Job) -> Text:
    task = cell(job.task)
    if job.attempt > 1:
        task.append(f"  attempt {job.attempt}", "dim")
    return task


def _progress(job: Job, length: int, *, is_plain: bool) -> Text:
    if job.progress is not None:
        return bar(job.progress, length, is_plain=is_plain) + Text(f" {job.progress:>4.0%}")
    return Text("-" if _has_begun(job) else "waits for a slot", "dim")


def workers(view: View, *, is_plain: bool) -> Panel:
    """One row per worker."""
    fields = (
        Field("WORKER", is_wide=True),
        Field("HOST", needs=90),
        Field("PID", "right"),
        Field("SLOTS", width=20),
        Field("BEAT", "right", width=10),
    )
    rows = []
    for row in view.workers:
        name = cell(row.info.id)
        if row.info.id == view.leader:
            name.append("  leads", "dim")
        taken = row.busy / row.info.slots if row.info.slots else 0.0
        slots = bar(taken, 8, is_plain=is_plain) + Text(f" {row.busy} of {row.info.slots}")
        rows.append((name, cell(row.info.host, "dim"), Text(str(row.info.pid)), slots, beat(row)))
    return Panel(fields, rows, "none: nobody runs jobs")


def beat(row: WorkerRow) -> Text:
    """When it was last seen to live."""
    if row.still is None:
        return Text("-", "dim")
    if row.is_silent:
        return Text(f"{rough(row.still)} silent", "bold red")
    return Text(f"{rough(row.still)} ago" if row.still >= 1 else "now", "green")


def failed(view: View) -> Panel:
    """One row per failed job, the latest first."""
    fields = (
        Field("FAILED"),
        Field("ID", needs=100),
        Field("AGO", "right", width=4),
        Field("ERROR", is_wide=True),
    )
    rows = []
    for job in view.glance.failed:
        ago = view.glance.now - (job.finished_at or view.glance.now)
        rows.append(
            (
                cell(job.task),
                cell(job.id, "dim"),
                age(ago),
                cell(why_failed(job), "red"),
            )
        )
    return Panel(fields, rows, "nothing")
