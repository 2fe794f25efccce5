"""Raise an exception inside a function before one of its lines is run.

Lines are counted as they are run, those of the function itself and not of what it calls. It is done
with ``sys.settrace``, so a debugger or a measure of coverage does not see the call.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Mapping
from types import CodeType, FrameType
from typing import Any

from penstock.errors import BadOption


class LineTrace:
    """One call of ``function`` that raises ``error()`` before its ``line``-th line."""

    def __init__(
        self, function: Callable[..., Any], line: int, error: Callable[[], BaseException]
    ) -> None:
        self._function = function
        self._code = code_of(function)
        self._line = line
        self._error = error
        self.lines = 0
        """The lines that were reached so far."""
        self.has_raised = False

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
        if event == "line" and not self.has_raised:
            self.lines += 1
            if self.lines >= self._line:
                self.has_raised = True
                raise self._error()
        return self._step


class _Traced:
    """Awaits a coroutine that is traced while it runs, and not while it waits."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        trace: Any,
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


def code_of(function: Callable[..., Any]) -> CodeType:
    """The code whose lines are counted. On failure: ``BadOption``."""
    bare = inspect.unwrap(function)
    bare = getattr(bare, "func", bare)
    for face in (bare, getattr(bare, "__func__", None), type(bare).__call__):
        code = getattr(face, "__code__", None)
        if isinstance(code, CodeType):
            return code
    why = "it has no lines that could be counted; use at='before' or at='after'"
    raise BadOption("task", function, why)
