"""The shop's book: which jobs there are, what became of each, and what happened lately."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.cli.times import rough
from penstock.cli.top.view import why_failed
from penstock.core.job import ErrorRecord, Job, State

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
