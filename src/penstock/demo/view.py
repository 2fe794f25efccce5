"""What the demo shows while it runs: a live screen on a terminal, lines anywhere else."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from rich.console import RenderableType
from rich.text import Text

from penstock.cli.output import print_line
from penstock.cli.terminal import Screen, can_show, standard
from penstock.cli.top.panel import Field, Panel, Size, bar, cell, number, page
from penstock.cli.top.render import running, sides, workers
from penstock.cli.top.view import View
from penstock.core.job import State
from penstock.demo.history import HistoryEntry, JobHistory

STYLES: Final = {
    "done": "green",
    "retry": "yellow",
    "crash": "bold red",
    "failed": "red",
    "later": "blue",
    "joined": "cyan",
    "gone": "bold magenta",
}


@dataclass(frozen=True, slots=True)
class DemoState:
    """What there is to show at one time."""

    view: View
    history: JobHistory
    news: Sequence[HistoryEntry]
    passed: float
    """Seconds since it began."""
    stays: bool
    is_over: bool = False
    """It only waits for its workers to end."""


class Display(Protocol):
    """Shows the state of the demo to a person."""

    def on(self, on_key: Callable[[str], None]) -> AbstractContextManager[None]:
        """Display something while the block runs; ``on_key`` gets the keys."""

    def show(self, state: DemoState) -> None:
        """Display how it is now."""


def choose_display() -> Display:
    """The display that suits this process's stdout."""
    return LiveDisplay(standard()) if can_show(sys.stdout) else LineDisplay()


class LineDisplay:
    """Prints what happens, one line each."""

    @contextmanager
    def on(self, on_key: Callable[[str], None]) -> Iterator[None]:
        yield

    def show(self, state: DemoState) -> None:
        for entry in state.news:
            print_line(f"{_time(entry)}  {entry.kind:<6}  {entry.what:<44}  {entry.text}".rstrip())
        sys.stdout.flush()


class LiveDisplay:
    """Draws the whole screen again and again."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    @contextmanager
    def on(self, on_key: Callable[[str], None]) -> Iterator[None]:
        with self._screen.taken(asyncio.get_running_loop(), on_key):
            yield

    def show(self, state: DemoState) -> None:
        width, height = self._screen.size
        self._screen.show(frame(state, width, height, is_plain=self._screen.is_plain))


def frame(state: DemoState, width: int, height: int, *, is_plain: bool) -> RenderableType:
    """The whole screen."""
    view, history = state.view, state.history
    panels = [
        queues(state, is_plain=is_plain, width=width),
        running(view, width, is_plain=is_plain),
        lately(history),
        workers(view, is_plain=is_plain),
    ]
    header, footer = _header(state, width), _footer(state, width)
    return page([header], panels, footer, Size(width, height))


def _header(state: DemoState, width: int) -> RenderableType:
    done = state.view.rate(state.view.total.succeeded)
    minutes, seconds = divmod(int(state.passed), 60)
    name = Text.assemble(
        ("Penstock demo", "bold"), ("  the background jobs of a small shop", "dim")
    )
    speed = Text.assemble((f"{done:.1f}", "bold green"), " done/s  ")
    return sides(name, speed + Text(f"{minutes:02}:{seconds:02}", "bold"), width)


def _footer(state: DemoState, width: int) -> RenderableType:
    pids = [info.pid for info in state.view.seen.workers]
    hint = f"in another terminal: kill -9 {pids[0]}" if pids and width >= 70 else ""
    end = " stops it" if state.stays else " stops it now"
    keys = Text.assemble(("q", "bold"), " or ", ("Ctrl-C", "bold"), end)
    if state.is_over:
        keys, hint = Text("stopping the workers", "bold yellow"), ""
    return sides(keys, Text(hint, "dim"), width)


def queues(state: DemoState, *, width: int, is_plain: bool) -> Panel:
    """One row per queue, with what has ended."""
    counts: Counter[tuple[str, str]] = Counter(state.history.queues)
    counts.update((job.queue, job.state) for job in state.history.open.values() if job is not None)
    fields = (
        Field("QUEUE", is_wide=True),
        Field("READY", "right"),
        Field("SCHEDULED", "right"),
        Field("RUNNING", "right"),
        Field("SUCCEEDED", "right"),
        Field("FAILED", "right"),
        Field("", width=16, needs=76),
    )
    rows = []
    for queue in sorted({queue for queue, _ in counts}):
        of = {state: counts[queue, state] for state in State}
        ended = sum(of[state] for state in State if state.is_final)
        rows.append(
            (
                cell(queue),
                number(of[State.READY]),
                number(of[State.SCHEDULED], "blue"),
                number(of[State.RUNNING], "cyan"),
                number(of[State.SUCCEEDED], "green"),
                number(of[State.FAILED], "red"),
                bar(ended / max(1, sum(of.values())), 16, is_plain=is_plain, style="green"),
            )
        )
    return Panel(fields, rows, "no queues yet")


def lately(history: JobHistory) -> Panel:
    """The latest entries of the history, the newest first."""
    fields = (Field("LATEST", width=8), Field("", width=6), Field("", is_wide=True))
    rows = [
        (
            Text(_time(entry), "dim"),
            Text(entry.kind, STYLES[entry.kind]),
            cell(f"{entry.what}: {entry.text}"),
        )
        for entry in reversed(history.lately)
    ]
    return Panel(fields, rows, "nothing yet", counts_rest=False)


def _time(entry: HistoryEntry) -> str:
    return f"{datetime.fromtimestamp(entry.at):%H:%M:%S}"
