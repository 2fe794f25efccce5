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
from penstock.cli.screen import Screen, can_show, standard
from penstock.cli.top.paint import running, sides, workers
from penstock.cli.top.panels import Field, Panel, Size, bar, cell, number, page
from penstock.cli.top.view import View
from penstock.core.job import State
from penstock.demo.book import Book, Entry

STYLES: Final = {
    "done": "green",
    "again": "yellow",
    "crash": "bold red",
    "failed": "red",
    "later": "blue",
    "joined": "cyan",
    "gone": "bold magenta",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """All there is to show at one time."""

    view: View
    book: Book
    news: Sequence[Entry]
    passed: float
    """Seconds since it began."""
    stays: bool
    is_over: bool = False
    """It only waits for its workers to end."""


class Show(Protocol):
    """Someone who shows it."""

    def on(self, heard: Callable[[str], None]) -> AbstractContextManager[None]:
        """Show something while the block runs; ``heard`` gets the keys."""

    def show(self, moment: Moment) -> None:
        """Show how it is now."""


def suited() -> Show:
    """The show that suits this process's stdout."""
    return LiveShow(standard()) if can_show(sys.stdout) else Lines()


class Lines:
    """Tells each thing that happens on a line."""

    @contextmanager
    def on(self, heard: Callable[[str], None]) -> Iterator[None]:
        yield

    def show(self, moment: Moment) -> None:
        for entry in moment.news:
            print_line(f"{_time(entry)}  {entry.kind:<6}  {entry.what:<44}  {entry.text}".rstrip())
        sys.stdout.flush()


class LiveShow:
    """Draws the state of everything, again and again."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    @contextmanager
    def on(self, heard: Callable[[str], None]) -> Iterator[None]:
        with self._screen.taken(asyncio.get_running_loop(), heard):
            yield

    def show(self, moment: Moment) -> None:
        width, height = self._screen.size
        self._screen.show(frame(moment, width, height, is_plain=self._screen.is_plain))


def frame(moment: Moment, width: int, height: int, *, is_plain: bool) -> RenderableType:
    """The whole screen."""
    view, book = moment.view, moment.book
    panels = [
        queues(moment, is_plain=is_plain, width=width),
        running(view, width, is_plain=is_plain),
        lately(book),
        workers(view, is_plain=is_plain),
    ]
    header, footer = _header(moment, width), _footer(moment, width)
    return page([header], panels, footer, Size(width, height))


def _header(moment: Moment, width: int) -> RenderableType:
    done = moment.view.rate(moment.view.total.succeeded)
    minutes, seconds = divmod(int(moment.passed), 60)
    name = Text.assemble(("Penstock demo", "bold"), ("  a little shop's background work", "dim"))
    speed = Text.assemble((f"{done:.1f}", "bold green"), " done/s  ")
    return sides(name, speed + Text(f"{minutes:02}:{seconds:02}", "bold"), width)


def _footer(moment: Moment, width: int) -> RenderableType:
    pids = [info.pid for info in moment.view.glance.workers]
    hint = f"in another terminal: kill -9 {pids[0]}" if pids and width >= 70 else ""
    end = " ends it" if moment.stays else " ends it now"
    keys = Text.assemble(("q", "bold"), " or ", ("Ctrl-C", "bold"), end)
    if moment.is_over:
        keys, hint = Text("the workers end", "bold yellow"), ""
    return sides(keys, Text(hint, "dim"), width)


def queues(moment: Moment, *, width: int, is_plain: bool) -> Panel:
    """One row per queue, with what has ended."""
    counts: Counter[tuple[str, str]] = Counter(moment.book.queues)
    counts.update((job.queue, job.state) for job in moment.book.open.values() if job is not None)
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
    return Panel(fields, rows, "the shop opens")


def lately(book: Book) -> Panel:
    """The latest entries of the book, the newest first."""
    fields = (Field("LATELY", width=8), Field("", width=6), Field("", is_wide=True))
    rows = [
        (
            Text(_time(entry), "dim"),
            Text(entry.kind, STYLES[entry.kind]),
            cell(f"{entry.what}: {entry.text}"),
        )
        for entry in reversed(book.lately)
    ]
    return Panel(fields, rows, "nothing yet", counts_rest=False)


def _time(entry: Entry) -> str:
    return f"{datetime.fromtimestamp(entry.at):%H:%M:%S}"
