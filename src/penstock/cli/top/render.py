"""The frame of ``penstock top``: panels of queues, running jobs, workers and failed jobs, each with
as many rows as there is room for; or a page of text instead of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from penstock.cli.top.overlay import Overlay
from penstock.cli.top.panel import Field, Panel, Size, age, bar, cell, number, page, rate
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
class ScreenState:
    """The size of the screen, and what the keys have chosen."""

    width: int
    height: int
    part: Part = "all"
    is_paused: bool = False
    is_plain: bool = False
    has_keys: bool = True
    trouble: str | None = None
    """Why what is shown is old."""
    selected: str | None = None
    """The id of the job that is marked."""
    overlay: Overlay | None = None
    """What is shown instead of the panels."""


def frame(view: View, state: ScreenState) -> RenderableType:
    """The whole screen."""
    if state.overlay is not None:
        return state.overlay.drawn(state.width, state.height)
    panels: dict[Part, Panel] = {
        "queues": queues(view),
        "running": running(view, state.width, state.selected, is_plain=state.is_plain),
        "workers": workers(view, is_plain=state.is_plain),
        "failed": failed(view, state.selected),
    }
    chosen = list(panels.values()) if state.part == "all" else [panels[state.part]]
    top: list[RenderableType] = [header(view, state.width)]
    if state.trouble is not None:
        lines = wrap(visible(state.trouble), state.width, max_lines=3, placeholder=" …")
        top += [Text(line, "bold red") for line in lines]
    return page(top, chosen, footer(state), Size(state.width, state.height))


def header(view: View, width: int) -> RenderableType:
    """Where, how fast, when."""
    total = view.total
    at = datetime.fromtimestamp(view.seen.now, UTC)
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


def footer(state: ScreenState) -> RenderableType:
    """The keys, and what the numbers mean."""
    if not state.has_keys:
        return Text("Ctrl-C ends it", "dim")
    keys = Text.assemble(("q", "bold"), " quit  ", ("p", "bold"))
    keys.append(" continue  " if state.is_paused else " pause  ")
    keys.append("tab", "bold")
    keys.append(f" shows {TITLES[state.part]}")
    if state.selected is not None and state.width >= 60:
        keys = Text.assemble(("e", "bold"), " explain  ", ("c", "bold"), " cancel  ", keys)
    keys = Text.assemble(keys, "  ", ("?", "bold"), " help")
    if state.is_paused:
        note = Text("PAUSED", "bold yellow")
    else:
        note = Text("rates of the last 10 s" if state.width >= 90 else "", "dim")
    return sides(keys, note, state.width)


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


def listed_running(view: View) -> list[Job]:
    """The running jobs as they are listed: the longest first, then those that have yet to start."""
    return sorted(view.seen.running, key=_has_begun, reverse=True)


def running(view: View, width: int, selected: str | None = None, *, is_plain: bool) -> Panel:
    """One row per running job."""
    jobs = listed_running(view)
    has_keys = any(job.key for job in jobs)
    longest = max((len(job.id) for job in jobs), default=2)
    fields = (
        Field("RUNNING", is_wide=True),
        Field("ID", needs=70, width=min(longest, 24 if width < 130 else 40)),
        Field("KEY", needs=100 if has_keys else 10_000, width=12),
        Field("FOR", "right", width=4),
        Field("PROGRESS", width=16 if width < 100 else 20),
        Field("", is_wide=True, needs=100),
    )
    length = 10 if width < 100 else 14
    rows = []
    for job in jobs:
        since = view.seen.now - (job.claimed_at or view.seen.now)
        rows.append(
            (
                _task(job),
                cell(job.id, "dim"),
                cell(job.key or ""),
                age(since),
                _progress(job, length, is_plain=is_plain),
                cell(job.note or "", "dim"),
            )
        )
    return Panel(fields, rows, "no jobs are running", selected=_index(jobs, selected))


def _index(jobs: Sequence[Job], selected: str | None) -> int | None:
    return next((index for index, job in enumerate(jobs) if job.id == selected), None)


def _has_begun(job: Job) -> bool:
    """Its progress may be stored before its start, if an earlier attempt crashed."""
    return job.started or job.progress is not None


def _task(job: Job) -> Text:
    task = cell(job.task)
    if job.name:
        task.append(f"  {visible(job.name)}", "bold")
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
    return Panel(fields, rows, "none: no jobs will run")


def beat(row: WorkerRow) -> Text:
    """When it was last seen to live."""
    if row.still is None:
        return Text("-", "dim")
    if row.is_silent:
        return Text(f"{rough(row.still)} silent", "bold red")
    return Text(f"{rough(row.still)} ago" if row.still >= 1 else "now", "green")


def failed(view: View, selected: str | None = None) -> Panel:
    """One row per failed job, the latest first."""
    fields = (
        Field("FAILED"),
        Field("ID", needs=100),
        Field("AGO", "right", width=4),
        Field("ERROR", is_wide=True),
    )
    rows = []
    for job in view.seen.failed:
        ago = view.seen.now - (job.finished_at or view.seen.now)
        rows.append(
            (
                cell(job.task),
                cell(job.id, "dim"),
                age(ago),
                cell(why_failed(job), "red"),
            )
        )
    return Panel(fields, rows, "no jobs have failed", selected=_index(view.seen.failed, selected))
