"""What became of the demo's jobs: a history while it runs, and the summary at its end."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.cli.output import Column, print_line, print_table
from penstock.cli.times import rough
from penstock.cli.top.view import why_failed
from penstock.core.job import ErrorRecord, Job, State
from penstock.demo.folder import DemoFolder, command

LATELY: Final = 200
"""Entries that are kept."""
CRASH: Final = "crash"

Kind = Literal["done", "retry", "crash", "failed", "later", "joined", "gone"]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Something that happened to a job or a worker."""

    at: float
    kind: Kind
    what: str
    text: str


class JobHistory:
    """What is known of the shop's jobs. Of those that have ended only sums are kept."""

    def __init__(self) -> None:
        self.open: dict[str, Job | None] = {}
        self.sums: Counter[tuple[str, str]] = Counter()
        """How many, by task and by what: jobs, succeeded, retried, crashed, failed."""
        self.queues: Counter[tuple[str, str]] = Counter()
        """How many have ended, by queue and state."""
        self.dead: list[Job] = []
        self.lately: deque[HistoryEntry] = deque(maxlen=LATELY)
        self.had_workers = False
        self._workers: dict[str, int] = {}

    def add(self, ids: Iterable[str]) -> None:
        """Note that these jobs were enqueued."""
        self.open.update(dict.fromkeys(ids))

    def note(self, jobs: Sequence[Job | None]) -> list[HistoryEntry]:
        """Take in the open jobs as they are now; return what is new."""
        entries: list[HistoryEntry] = []
        for job in jobs:
            if job is not None:
                entries += self._changes(self.open.get(job.id), job)
                self.open[job.id] = job
                if job.state.is_final:
                    self._close(job)
        entries.sort(key=lambda entry: entry.at)
        self.lately.extend(entries)
        return entries

    def note_workers(self, workers: dict[str, int], at: float) -> list[HistoryEntry]:
        """Take in which workers there are, with their pids; return what is new."""
        entries = [
            HistoryEntry(at, "gone", f"worker {pid}", "its process has ended")
            for id, pid in self._workers.items()
            if id not in workers
        ]
        entries += [
            HistoryEntry(at, "joined", f"worker {pid}", "is running jobs")
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

    def _changes(self, before: Job | None, job: Job) -> Iterator[HistoryEntry]:
        known = 0 if before is None else len(before.errors)
        what = f"{job.task} {described(job)}"
        for error in job.errors[known:]:
            yield HistoryEntry(error.at, *_ended_badly(what, error, job))
        if before is None and job.state is State.SCHEDULED and not job.errors:
            wait = rough((job.run_at or job.enqueued_at) - job.enqueued_at)
            yield HistoryEntry(job.enqueued_at, "later", what, f"due in {wait}")
        if job.state is State.SUCCEEDED:
            tries = f" at attempt {job.attempt}" if job.errors else ""
            yield HistoryEntry(job.finished_at or 0.0, "done", what, f"{_result(job)}{tries}")

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


def _ended_badly(what: str, error: ErrorRecord, job: Job) -> tuple[Kind, str, str]:
    is_last = error is job.errors[-1]
    if job.state is State.FAILED and is_last:
        return "failed", what, f"for good: {why_failed(job)}"
    if error.kind == CRASH:
        return "crash", what, "its process died; it will run again, on its own"
    return "retry", what, f"attempt {error.attempt}: {error.message}"


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


# --- the summary --------------------------------------------------------------------------------

KINDS = ("jobs", "succeeded", "retried", "crashed", "failed")


def print_summary(history: JobHistory, folder: DemoFolder, passed: float) -> None:
    """Print what became of all jobs, and what to try next."""
    jobs = sum(count for (_, kind), count in history.sums.items() if kind == "jobs")
    print_line(f"{jobs} jobs ended in {passed:.0f} seconds, on two worker processes.")
    if history.open:
        print_line(f"{len(history.open)} more are waiting in the store.")
    print_line()
    print_table(
        [Column("TASK"), *(Column(kind.upper(), "right") for kind in KINDS)],
        [(task, *(str(history.sums[task, kind]) for kind in KINDS)) for task in history.tasks],
    )
    if history.dead:
        print_line()
        print_line("Failed jobs (dead letters):")
        for job in history.dead[-5:]:
            tries = f"{job.attempt} attempt{'s' if job.attempt > 1 else ''}"
            print_line(f"  {job.task} {described(job)}, {tries}: {why_failed(job)}")
    print_line()
    print_line(f"Everything is kept in {folder.path}: {', '.join(sorted(_files(folder)))}.")
    print_line()
    print_line("Try next:")
    for line in next_commands(history, folder):
        print_line(f"  {line}")


def next_commands(history: JobHistory, folder: DemoFolder) -> tuple[str, str, str]:
    """Three commands that work as they are printed."""
    url = ("--url", folder.url)
    if not history.dead:
        listed = command("jobs", "list", *url)
        return listed, command("queues", "list", *url), command("top", *url)
    # Rather one that a person could correct than one that takes a process down.
    dead = min(history.dead, key=lambda job: job.crashes).id
    return (
        command("jobs", "list", "--state", "failed", *url),
        command("explain", dead, *url),
        command("jobs", "retry", dead, *url),
    )


def _files(folder: DemoFolder) -> list[str]:
    wanted = ("jobs.db", "pictures", "workers.log")
    return [name for name in wanted if os.path.exists(folder.path / name)]
