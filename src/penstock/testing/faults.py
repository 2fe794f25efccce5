"""What is to go wrong with the next attempts of a task, because a test says so."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any, Final, Literal

from penstock.context import Interrupted
from penstock.core.spec import Spec
from penstock.errors import BadOption
from penstock.testing.errors import NotReached, UnusedFault
from penstock.worker.inflight import Attempt, Ending

At = Literal["before", "during", "after"] | int
"""When: before the handler is called, after its first line, before so many-th line, or after it."""

What = Literal["a crash", "a failure", "a time-out"]

DURING: Final = 2
"""The line before which "during" is."""


class Crash(BaseException):
    """Raised in a handler where its process dies, in a test.

    A dead process runs no clean-up; here ``finally`` and ``with`` do run as this passes.
    """

    def __str__(self) -> str:
        return "the process of this attempt dies here, because the test says so"


@dataclass(eq=False, slots=True)
class Fault:
    """One thing to go wrong with attempts of a task, and how often it still does."""

    what: What
    task: str
    times: int | None
    """None: always."""
    at: At = "before"
    error: BaseException | type[BaseException] | None = None
    has_happened: bool = False

    def use(self) -> None:
        """It happens now."""
        self.has_happened = True
        if self.times is not None:
            self.times -= 1


class Faults:
    """The faults of one sandbox, used up in the order they were asked for."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Let it happen to the next attempts of its task."""
        self._faults.append(fault)

    def take(self, task: str) -> Fault | None:
        """What goes wrong with the attempt of ``task`` that begins now."""
        for fault in self._faults:
            if fault.task == task and fault.times != 0:
                fault.use()
                return fault
        return None

    def check(self) -> None:
        """Raise ``UnusedFault`` for one that has not happened as often as it was to."""
        faults, self._faults = self._faults, []
        for fault in faults:
            if fault.times or not fault.has_happened:
                raise UnusedFault(fault.what, fault.task, fault.times)


class Doom:
    """A fault that has met its attempt: how to run it, and whether its process has died."""

    def __init__(self, fault: Fault | None, attempt: Attempt) -> None:
        self._fault = fault
        self._attempt = attempt
        self._wire: Tripwire | None = None

    @property
    def is_injected(self) -> bool:
        """Whatever comes of the attempt, the test has asked for it."""
        return self._fault is not None

    @property
    def dies_first(self) -> bool:
        """The process dies before the handler is called."""
        return self._is_crash and self._fault is not None and self._fault.at == "before"

    @property
    def _is_crash(self) -> bool:
        return self._fault is not None and self._fault.what == "a crash"

    def spec(self) -> Spec:
        """The task, with the fault in its handler."""
        fault, spec = self._fault, self._attempt.spec
        if fault is not None and self._is_crash and fault.at == "after" and spec.need is not None:
            return replace(spec, function=_dying(spec))
        if fault is None or (self._is_crash and fault.at in ("before", "after")):
            return spec
        if fault.what == "a failure":
            return replace(spec, function=_raiser(fault, spec))
        line = fault.at if isinstance(fault.at, int) else DURING
        if fault.what == "a time-out":
            self._wire = wire = Tripwire(spec.function, 1, self._time_out)
        else:
            self._wire = wire = Tripwire(spec.function, line, Crash)
        return replace(spec, function=wire.acall if spec.is_async else wire.call)

    def died(self) -> bool:
        """Say, after the attempt, whether its process has died.

        On failure: ``NotReached``.
        """
        fault, wire = self._fault, self._wire
        if fault is None or not self._is_crash:
            return False
        if wire is not None and not wire.has_snapped and isinstance(fault.at, int):
            raise NotReached(fault.task, fault.at, wire.lines)
        return True

    def _time_out(self) -> BaseException:
        self._attempt.end(Ending.TIMEOUT)
        return asyncio.CancelledError() if self._attempt.spec.is_async else Interrupted()


def _dying(spec: Spec) -> Callable[..., Any]:
    """A handler that ends, and whose process dies before its transaction is committed."""

    def die(*args: Any, **kwargs: Any) -> Any:
        spec.function(*args, **kwargs)
        raise Crash

    async def adie(*args: Any, **kwargs: Any) -> Any:
        await spec.function(*args, **kwargs)
        raise Crash

    return adie if spec.is_async else die


def _raiser(fault: Fault, spec: Spec) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        # A new one each time, where it is a class: a traceback grows with each raise.
        error = fault.error
        if error is None:
            error = RuntimeError(f"{fault.task} fails, because the test says so")
        raise error() if isinstance(error, type) else error

    async def afail(*args: Any, **kwargs: Any) -> Any:
        fail()

    chosen: Callable[..., Any | Coroutine[Any, Any, Any]] = afail if spec.is_async else fail
    return chosen


# --- tripwire -----------------------------------------------------------------------------------
#
# A tripwire in a function: an exception is raised before a line of it is run.
#
# Lines are counted as they are run, those of the function itself and not of what it calls. It is
# laid
# with ``sys.settrace``, so a debugger or a measure of coverage does not see the call.


Function = Callable[..., Any]


class Tripwire:
    """Wraps one call of a function. ``snap`` makes what is raised before the ``line``-th line."""

    def __init__(self, function: Function, line: int, snap: Callable[[], BaseException]) -> None:
        self._function = function
        self._code = code_of(function)
        self._line = line
        self._snap = snap
        self.lines = 0
        """The lines that were come to so far."""
        self.has_snapped = False

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the sync function."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return self._function(*args, **kwargs)
        finally:
            sys.settrace(before)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call the async function."""
        return await _Traced(self._function, args, kwargs, self._enter)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._step if frame.f_code is self._code else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self.has_snapped:
            self.lines += 1
            if self.lines >= self._line:
                self.has_snapped = True
                raise self._snap()
        return self._step


class _Traced:
    """Awaits a coroutine that is traced while it runs, and not while it waits."""

    def __init__(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], trace: Any
    ) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._trace = trace

    def __await__(self) -> Generator[Any, Any, Any]:
        handler = self._function(*self._args, **self._kwargs).__await__()
        step: Callable[[Any], Any] = handler.send
        sent: Any = None
        while True:
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                future = step(sent)
            except StopIteration as end:
                return end.value
            finally:
                sys.settrace(before)
            try:
                sent, step = (yield future), handler.send
            except BaseException as error:
                sent, step = error, handler.throw


def code_of(function: Function) -> CodeType:
    """The code whose lines are counted."""
    bare = inspect.unwrap(function)
    bare = getattr(bare, "func", bare)
    for face in (bare, getattr(bare, "__func__", None), type(bare).__call__):
        code = getattr(face, "__code__", None)
        if isinstance(code, CodeType):
            return code
    why = "it has no lines that could be counted; use at='before' or at='after'"
    raise BadOption("task", function, why)
