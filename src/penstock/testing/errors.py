"""What a sandbox has to say when a test cannot go on, or proves less than it seems to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.job import State
from penstock.core.units import text
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.testing.runs import Failure


class Runaway(PenstockError):
    """Jobs lead to jobs, without end."""

    attempts: int
    tasks: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.attempts} attempts have run and more are due, the last of "
            f"{', '.join(self.tasks)}; does a task enqueue itself without end? Else give the "
            "sandbox a greater max_attempts"
        )


class NobodyRuns(UsageError, RuntimeError):
    """Waiting for a job in a place where nothing runs meanwhile."""

    job: str
    state: State

    _sentence = (
        "job {job} is {state}, and in a sandbox nothing runs while you wait for it; "
        "call drain() or advance(...) first, or wait for it inside interleave(...)"
    )


class NotDue(UsageError, RuntimeError):
    """A job that was to run now, and cannot."""

    job: str
    state: State
    why: str

    _sentence = "job {job} is {state} and cannot run now: {why}"


class SandboxBusy(UsageError, RuntimeError):
    """One drain inside another."""

    call: str

    _sentence = (
        "{call}() while jobs of the same sandbox run already; what a handler enqueues "
        "runs when it has ended, so leave the call out"
    )


class SandboxClosed(UsageError, RuntimeError):
    """A sandbox outside of its block."""

    call: str

    _sentence = "{call}() outside of the sandbox's block; use it inside `with Sandbox(app)`"


class SandboxUsed(SandboxClosed):
    """A sandbox entered twice."""

    _sentence = "a sandbox is for one block, and this one has its own already; make another"


class SandboxForked(UsageError, RuntimeError):
    """Jobs to be run in a fork of the process that has the sandbox."""

    call: str

    _sentence = (
        "{call}() in a fork of the test's process, which has only a copy of the sandbox: "
        "the test would not see it; run jobs in the test, or make a sandbox in the fork"
    )


class WouldBlock(UsageError, RuntimeError):
    """A blocking call where a loop runs."""

    call: str

    _sentence = "{call}() would block the loop that runs here; use `await t.a{call}()`"


class NotReached(PenstockError, AssertionError):
    """A fault that was to happen at a line which the handler did not come to."""

    task: str
    line: int
    lines: int

    _sentence = (
        "{task} was to be stopped before its line {line} and has run only "
        "{lines}; lines are counted as they are run, from 1"
    )


class UnusedFault(PenstockError, AssertionError):
    """A test that asked for a fault which never happened."""

    what: str
    task: str
    left: int | None

    def __str__(self) -> str:
        times = "" if self.left in (None, 1) else f" {self.left} times more"
        return (
            f"{self.what} of {self.task} was asked for{times} and never happened, so this test "
            "proves nothing about it; run the job after asking, or leave it out"
        )


class UnseenFailure(PenstockError, AssertionError):
    """Attempts that failed in a test which did not look."""

    failures: tuple[Failure, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"  {failure}" for failure in self.failures[:10])
        more = len(self.failures) - 10
        lines += f"\n  and {more} more" if more > 0 else ""
        attempts = "an attempt" if len(self.failures) == 1 else f"{len(self.failures)} attempts"
        return (
            f"{attempts} failed and the test did not look:\n{lines}\n"
            "if that is right, say so: read t.failures, or give strict=False"
        )


def since(start: float, instant: float) -> str:
    """An instant as a test thinks of it: how long after its start."""
    return f"+{text(max(0.0, instant - start))}"
