"""What is to go wrong with the next attempts of a task, because a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from penstock.context import Interrupted
from penstock.core.spec import Spec
from penstock.errors import BadOption
from penstock.testing.errors import NotReached, UnusedFault
from penstock.testing.line_tracing import LineTrace, code_of
from penstock.worker.inflight import Attempt, Ending

At = Literal["before", "during", "after"] | int
"""When: before the handler is called, after its first line, before so many-th line, or after it."""

What = Literal["a crash", "a failure", "a time-out"]

Raised = BaseException | type[BaseException] | None

DURING: Final = 2
"""The line before which "during" is."""


class Crash(BaseException):
    """Raised in a handler where its process dies, in a test.

    A dead process runs no clean-up; here ``finally`` and ``with`` do run as this passes.
    """

    def __str__(self) -> str:
        return "the process of this attempt dies here, because the test says so"


@dataclass(eq=False, slots=True)
class TaskFault:
    """One thing to go wrong with attempts of a task, and how often it still does."""

    what: What
    task: str
    times: int | None
    """None: always."""
    at: At = "before"
    error: Raised = None
    has_happened: bool = False


class TaskFaults:
    """The faults of one sandbox, used up in the order they were asked for."""

    def __init__(self) -> None:
        self._faults: list[TaskFault] = []

    def add_crash(self, spec: Spec, at: At, times: int | None) -> None:
        """Let the process of the next attempts die. On failure: ``BadOption``."""
        is_line = isinstance(at, int) and not isinstance(at, bool) and at >= 1
        if not is_line and at not in ("before", "during", "after"):
            raise BadOption("at", at, "give 'before', 'during', 'after', or a line from 1 up")
        if is_line or at == "during":
            code_of(spec.function)
        self._add(TaskFault("a crash", spec.name, times, at))

    def add_failure(self, spec: Spec, error: Raised, times: int | None) -> None:
        """Let the next attempts raise in place of the handler. On failure: ``BadOption``."""
        kind = error if isinstance(error, type) else type(error)
        if error is not None and not issubclass(kind, BaseException):
            raise BadOption("error", error, "give an exception, or a class of exceptions")
        self._add(TaskFault("a failure", spec.name, times, error=error))

    def add_time_out(self, spec: Spec, times: int | None) -> None:
        """Let the next attempts run out of time. On failure: ``BadOption``."""
        if spec.timeout is None:
            why = "the task has no timeout, so it never runs out of time; declare timeout=..."
            raise BadOption("task", spec.name, why)
        self._add(TaskFault("a time-out", spec.name, times))

    def take(self, task: str) -> TaskFault | None:
        """What goes wrong with the attempt of ``task`` that begins now."""
        for fault in self._faults:
            if fault.task == task and fault.times != 0:
                fault.has_happened = True
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def check(self) -> None:
        """Raise ``UnusedFault`` for one that has not happened as often as it was to. Once."""
        faults, self._faults = self._faults, []
        for fault in faults:
            if fault.times or not fault.has_happened:
                raise UnusedFault(fault.what, fault.task, fault.times)

    def _add(self, fault: TaskFault) -> None:
        if fault.times is not None and (isinstance(fault.times, bool) or fault.times < 1):
            raise BadOption("times", fault.times, "give a whole number from 1, or None for always")
        self._faults.append(fault)


class InjectedFault:
    """The fault of one attempt, if it has one: how to run it, and whether its process has died."""

    def __init__(self, fault: TaskFault | None, attempt: Attempt) -> None:
        self._fault = fault
        self._attempt = attempt
        self._trace: LineTrace | None = None

    @property
    def is_asked_for(self) -> bool:
        """The test has asked for the end of this attempt."""
        return self._fault is not None

    @property
    def dies_first(self) -> bool:
        """The process dies before the handler is called."""
        fault = self._fault
        return fault is not None and fault.what == "a crash" and fault.at == "before"

    def spec(self) -> Spec:
        """The task, with the fault in its handler."""
        fault, spec = self._fault, self._attempt.spec
        if fault is None:
            return spec
        if fault.what == "a failure":
            return _raising(spec, lambda: _made(fault))
        if fault.what == "a time-out":
            return _raising(spec, self._time_out)
        if fault.at == "after":
            # Elsewhere the process dies after the attempt; here, before its transaction commits.
            return spec if spec.need is None else _dying(spec)
        line = fault.at if isinstance(fault.at, int) else DURING
        self._trace = trace = LineTrace(spec.function, line, Crash)
        return replace(spec, function=trace.acall if spec.is_async else trace.call)

    def died(self) -> bool:
        """Say, after the attempt, whether its process has died.

        On failure: ``NotReached``.
        """
        fault, trace = self._fault, self._trace
        if fault is None or fault.what != "a crash":
            return False
        if trace is not None and not trace.has_raised and isinstance(fault.at, int):
            raise NotReached(fault.task, fault.at, trace.lines)
        return True

    def _time_out(self) -> BaseException:
        self._attempt.end(Ending.TIMEOUT)
        return asyncio.CancelledError() if self._attempt.spec.is_async else Interrupted()


def _dying(spec: Spec) -> Spec:
    """A handler that ends, and whose process dies then."""

    def die(*args: Any, **kwargs: Any) -> Any:
        spec.function(*args, **kwargs)
        raise Crash

    async def adie(*args: Any, **kwargs: Any) -> Any:
        await spec.function(*args, **kwargs)
        raise Crash

    return replace(spec, function=adie if spec.is_async else die)


def _raising(spec: Spec, error: Callable[[], BaseException]) -> Spec:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error()

    async def afail(*args: Any, **kwargs: Any) -> Any:
        raise error()

    return replace(spec, function=afail if spec.is_async else fail)


def _made(fault: TaskFault) -> BaseException:
    if fault.error is None:
        return RuntimeError(f"{fault.task} fails, because the test says so")
    # A new one each time, where it is a class: a traceback grows with each raise.
    return fault.error() if isinstance(fault.error, type) else fault.error
