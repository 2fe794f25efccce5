"""What the demo shows while it runs: a live screen on a terminal, lines anywhere else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec
from rich.console import RenderableType
from rich.text import Text

from penstock.cli.output import Column, print_line, print_table
from penstock.cli.terminal import Screen, can_show, standard
from penstock.cli.times import rough
from penstock.cli.top.render import (
    Field,
    Panel,
    Size,
    bar,
    cell,
    number,
    page,
    running,
    sides,
    workers,
)
from penstock.cli.top.view import View, why_failed
from penstock.core.job import ErrorRecord, Job, State
from penstock.demo.folder import Place, command

# --- book ---------------------------------------------------------------------------------------
#
# The shop's book: which jobs there are, what became of each, and what happened lately.


LATELY: Final = 200
"""Entries that are kept."""
CRASH: Final = "crash"

Kind = Literal["done", "again", "crash", "failed", "later", "joined", "gone"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened."""

    at: float
    kind: Kind
    what: str
    text: str


class Book:
    """All that is known of the shop's jobs. Of those that have ended only sums are kept."""

    def __init__(self) -> None:
        self.open: dict[str, Job | None] = {}
        self.sums: Counter[tuple[str, str]] = Counter()
        """How many, by task and by what: jobs, succeeded, retried, crashed, failed."""
        self.queues: Counter[tuple[str, str]] = Counter()
        """How many have ended, by queue and state."""
        self.dead: list[Job] = []
        self.lately: deque[Entry] = deque(maxlen=LATELY)
        self.had_workers = False
        self._workers: dict[str, int] = {}

    def add(self, ids: Iterable[str]) -> None:
        """These were enqueued."""
        self.open.update(dict.fromkeys(ids))

    def note(self, jobs: Sequence[Job | None]) -> list[Entry]:
        """See what has become of the open jobs; return what is new."""
        entries: list[Entry] = []
        for job in jobs:
            if job is not None:
                entries += self._changes(self.open.get(job.id), job)
                self.open[job.id] = job
                if job.state.is_final:
                    self._close(job)
        entries.sort(key=lambda entry: entry.at)
        self.lately.extend(entries)
        return entries

    def note_workers(self, workers: dict[str, int], at: float) -> list[Entry]:
        """See which workers there are, with their pids; return what is new."""
        entries = [
            Entry(at, "gone", f"worker {pid}", "its process has ended")
            for id, pid in self._workers.items()
            if id not in workers
        ]
        entries += [
            Entry(at, "joined", f"worker {pid}", "runs jobs now")
            for id, pid in workers.items()
            if id not in self._workers
        ]
        self._workers = workers
        self.had_workers = self.had_workers or bool(workers)
        self.lately.extend(entries)
        return entries

    @property
    def tasks(self) -> list[str]:
        """The tasks of which there were jobs, in the order of the alphabet."""
        known = {task for task, _ in self.sums}
        return sorted(known | {job.task for job in self.open.values() if job is not None})

    def _changes(self, before: Job | None, job: Job) -> Iterator[Entry]:
        known = 0 if before is None else len(before.errors)
        what = f"{job.task} {described(job)}"
        for error in job.errors[known:]:
            yield Entry(error.at, *_told(what, error, job))
        if before is None and job.state is State.SCHEDULED and not job.errors:
            wait = rough((job.run_at or job.enqueued_at) - job.enqueued_at)
            yield Entry(job.enqueued_at, "later", what, f"due in {wait}")
        if job.state is State.SUCCEEDED:
            tries = f" at attempt {job.attempt}" if job.errors else ""
            yield Entry(job.finished_at or 0.0, "done", what, f"{_result(job)}{tries}")

    def _close(self, job: Job) -> None:
        del self.open[job.id]
        crashed = sum(error.kind == CRASH for error in job.errors)
        is_failed = job.state is State.FAILED
        self.sums[job.task, "jobs"] += 1
        self.sums[job.task, job.state] += 1
        self.sums[job.task, "crashed"] += crashed
        # The last failure of a job that failed for good was followed by no other try.
        self.sums[job.task, "retried"] += job.failures - (is_failed and job.failures > 0)
        self.queues[job.queue, job.state] += 1
        if is_failed and len(self.dead) < LATELY:
            self.dead.append(job)


def _told(what: str, error: ErrorRecord, job: Job) -> tuple[Kind, str, str]:
    """An attempt that ended badly, in words."""
    is_last = error is job.errors[-1]
    if job.state is State.FAILED and is_last:
        return "failed", what, f"for good: {why_failed(job)}"
    if error.kind == CRASH:
        return "crash", what, "its process died; it runs again, alone"
    return "again", what, f"attempt {error.attempt}: {error.message}"


def described(job: Job) -> str:
    """The arguments, shortly."""
    try:
        args: Any = msgspec.json.decode(job.payload)
    except msgspec.DecodeError:
        return ""
    return " ".join(str(value) for value in args.values()) if isinstance(args, dict) else ""


def _result(job: Job) -> str:
    result: Any = msgspec.json.decode(job.result or b"null")
    return "done" if result is None else str(result)


# --- summary ------------------------------------------------------------------------------------
#
# What the demo says at its end: what became of everything, and what to try next.


KINDS = ("jobs", "succeeded", "retried", "crashed", "failed")


def print_summary(book: Book, place: Place, passed: float) -> None:
    """Print it."""
    jobs = sum(count for (_, kind), count in book.sums.items() if kind == "jobs")
    print_line(f"{jobs} jobs ended in {passed:.0f} seconds, on two worker processes.")
    if book.open:
        print_line(f"{len(book.open)} more wait: nothing is lost.")
    print_line()
    print_table(
        [Column("TASK"), *(Column(kind.upper(), "right") for kind in KINDS)],
        [(task, *(str(book.sums[task, kind]) for kind in KINDS)) for task in book.tasks],
    )
    if book.dead:
        print_line()
        print_line("Dead letters, which wait for a person:")
        for job in book.dead[-5:]:
            tries = f"{job.attempt} attempt{'s' if job.attempt > 1 else ''}"
            print_line(f"  {job.task} {described(job)}, {tries}: {why_failed(job)}")
    print_line()
    print_line(f"All of it stays in {place.folder}: {', '.join(sorted(_files(place)))}.")
    print_line()
    print_line("Try next:")
    for line in next_commands(book, place):
        print_line(f"  {line}")


def next_commands(book: Book, place: Place) -> tuple[str, str, str]:
    """Three commands that work as they are printed."""
    url = ("--url", place.url)
    if not book.dead:
        listed = command("jobs", "list", *url)
        return listed, command("queues", "list", *url), command("top", *url)
    # Rather one that a person could correct than one that takes a process down.
    dead = min(book.dead, key=lambda job: job.crashes).id
    return (
        command("jobs", "list", "--state", "failed", *url),
        command("explain", dead, *url),
        command("jobs", "retry", dead, *url),
    )


def _files(place: Place) -> list[str]:
    """What a person may want to look at."""
    wanted = ("jobs.db", "pictures", "workers.log")
    return [name for name in wanted if os.path.exists(place.folder / name)]


# --- show ---------------------------------------------------------------------------------------


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
