"""The frame of ``penstock top``: panels of queues, running jobs, workers and failed jobs, each with
as many rows as there is room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import wrap
from types import MappingProxyType
from typing import Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.output import visible
from penstock.cli.times import rough
from penstock.cli.top.view import View, WorkerRow, why_failed
from penstock.core.job import Job

LEAST: Final = 3
"""Lines below which a panel is not worth its room, unless it has less to show."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a panel. One that is wide takes what the others leave; one that is dispensable
    below a width of the screen is left out there.
    """

    title: str
    align: Literal["left", "right"] = "left"
    is_wide: bool = False
    needs: int = 0
    """The width of a screen that has room for it."""
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A table with a name, which is the title of its first column."""

    fields: tuple[Field, ...]
    rows: Sequence[Sequence[Text]]
    empty: str
    """What stands there if there are no rows."""
    counts_rest: bool = True
    """Its last line says how many rows are not shown."""

    @property
    def wanted(self) -> int:
        """Lines that would show all of it."""
        return 1 + max(1, len(self.rows))

    def table(self, width: int, lines: int) -> Table:
        """The table, in as many lines as it is given."""
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold"
        )
        shown = [index for index, field in enumerate(self.fields) if field.needs <= width]
        for field in (self.fields[index] for index in shown):
            table.add_column(
                field.title,
                justify=field.align,
                no_wrap=True,
                overflow="ellipsis",
                ratio=1 if field.is_wide else None,
                width=field.width,
            )
        for row in self._fitting(max(1, lines - 1)):
            table.add_row(*(row[index] if index < len(row) else Text("") for index in shown))
        return table

    def _fitting(self, lines: int) -> Sequence[Sequence[Text]]:
        if not self.rows:
            return [(Text(self.empty, "dim"),)]
        if len(self.rows) <= lines or lines == 1 or not self.counts_rest:
            return self.rows[:lines]
        left = len(self.rows) - lines + 1
        return [*self.rows[: lines - 1], (Text(f"… {left} more", "dim"),)]


@dataclass(frozen=True, slots=True)
class Size:
    """The columns and lines of a screen."""

    width: int
    height: int


def page(
    top: Sequence[RenderableType], panels: Sequence[Panel], bottom: RenderableType, size: Size
) -> RenderableType:
    """A whole screen: lines at its top, panels one below the other, a line at its bottom.

    There is an empty line between any two of them. The last panels are left out when there is no
    room.
    """
    lines = size.height - len(top) - 3
    shown = list(panels)
    while len(shown) > 1 and sum(min(LEAST, panel.wanted) + 1 for panel in shown) - 1 > lines:
        shown.pop()
    given = shares(shown, lines - len(shown) + 1)
    parts: list[RenderableType] = [*top, ""]
    for panel, room in zip(shown, given, strict=True):
        parts += [panel.table(size.width, room), ""]
    parts += [""] * (lines - sum(given) - len(shown) + 1)
    return Group(*parts, bottom)


def shares(panels: Sequence[Panel], lines: int) -> list[int]:
    """Lines for each: a few at first, then one by one to those that want more."""
    given = [min(LEAST, panel.wanted) for panel in panels]
    while sum(given) < lines:
        wanting = [index for index, panel in enumerate(panels) if given[index] < panel.wanted]
        if not wanting:
            break
        for index in wanting[: lines - sum(given)]:
            given[index] += 1
    return given


def cell(text: str, style: str = "") -> Text:
    """A text from a store, which cannot move the cursor."""
    return Text(visible(text), style, no_wrap=True, overflow="ellipsis")


def number(value: int, style: str = "") -> Text:
    """How many; none is not worth looking at."""
    return Text(f"{value:,}", style) if value else Text("0", "dim")


def rate(value: float, style: str = "") -> Text:
    """How many per second."""
    if value <= 0:
        return Text("-", "dim")
    return Text(f"{value:,.0f}" if value >= 100 else f"{value:.1f}", style)


def bar(fraction: float, width: int, *, is_plain: bool, style: str = "cyan") -> Text:
    """How much of the whole, as a line."""
    full, half, empty = ("#", "", "-") if is_plain else ("━", "╸", "─")
    exact = min(1.0, max(0.0, fraction)) * width
    filled = int(exact)
    drawn = full * filled
    if half and exact - filled >= 0.5:
        drawn += half
    return Text(drawn, style) + Text(empty * (width - len(drawn)), "bright_black")


def age(seconds: float) -> Text:
    """How long, in four letters."""
    return Text(rough(seconds) if seconds >= 1 else "0s")


# --- the frame ----------------------------------------------------------------------------------

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


def frame(view: View, state: ScreenState) -> RenderableType:
    """The whole screen."""
    panels: dict[Part, Panel] = {
        "queues": queues(view),
        "running": running(view, state.width, is_plain=state.is_plain),
        "workers": workers(view, is_plain=state.is_plain),
        "failed": failed(view),
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
    keys.append(" go on  " if state.is_paused else " pause  ")
    keys.append("tab", "bold")
    keys.append(f" shows {TITLES[state.part]}")
    if state.is_paused:
        note = Text("PAUSED", "bold yellow")
    else:
        note = Text("rates of the last 10 s" if state.width >= 70 else "", "dim")
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


def running(view: View, width: int, *, is_plain: bool) -> Panel:
    """One row per running job, the longest first, and then those that have yet to start."""
    has_keys = any(job.key for job in view.seen.running)
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
    for job in sorted(view.seen.running, key=_has_begun, reverse=True):
        since = view.seen.now - (job.claimed_at or view.seen.now)
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
    """Its progress may be stored before its start, if an earlier attempt crashed."""
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
    return Panel(fields, rows, "nothing")
