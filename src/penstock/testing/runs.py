"""What happened in a sandbox: each attempt, and each exception as it was raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.context import Retry
from penstock.core.job import OutcomeKind
from penstock.job import Job


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """An attempt that raised: the exception itself, with its traceback."""

    job: Job[Any]
    """As it was when the attempt began."""
    error: BaseException
    is_final: bool
    """It was the last one: the job is a dead letter."""
    at: float
    """The instant by the sandbox's clock."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self.job.task

    @property
    def attempt(self) -> int:
        """Which attempt of the job it was."""
        return self.job.attempt

    def __str__(self) -> str:
        end = "the job has failed" if self.is_final else "it is tried again"
        told = f"{type(self.error).__name__}: {self.error}"
        return f"{self.task}, job {self.job.id}, attempt {self.attempt}: {told} ({end})"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One attempt that ran."""

    job: Job[Any]
    """As it is after the attempt."""
    outcome: OutcomeKind
    at: float
    """The instant by the sandbox's clock."""
    failure: Failure | None = None
    is_injected: bool = False
    """The test asked for what became of it."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self.job.task

    @property
    def is_surprise(self) -> bool:
        """It has failed, and not because its handler asked for a retry and gets one."""
        failure = self.failure
        return failure is not None and (failure.is_final or not isinstance(failure.error, Retry))

    def __str__(self) -> str:
        return f"{self.task}, job {self.job.id}, attempt {self.job.attempt}: {self.outcome}"


@dataclass(frozen=True, slots=True, eq=False)
class Drained:
    """The attempts of one ``drain``, ``advance`` or ``interleave``, in the order they ended."""

    runs: tuple[Run, ...] = ()

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def counts(self) -> dict[str, int]:
        """How many attempts ended as what: ``{"succeeded": 2, "retry": 1}``."""
        return dict(Counter(run.outcome.value for run in self.runs))

    @property
    def tasks(self) -> list[str]:
        """The tasks in the order they ran."""
        return [run.task for run in self.runs]


class FailureLog:
    """The failures of one sandbox, and which of them the test has not looked at."""

    def __init__(self) -> None:
        self.all: list[Failure] = []
        self.unseen: list[Failure] = []

    def add(self, runs: Iterable[Run]) -> None:
        """Keep the failures among some runs; one that the test asked for needs no look."""
        for run in runs:
            if run.failure is not None and run.is_surprise:
                self.all.append(run.failure)
                if not run.is_injected:
                    self.unseen.append(run.failure)

    def look_at(self, job: str) -> None:
        """The test has got the failure of this job from its handle."""
        self.unseen = [failure for failure in self.unseen if failure.job.id != job]

    def forget(self, failure: Failure) -> None:
        """The test gets this one as an exception."""
        self.unseen = [each for each in self.unseen if each is not failure]
