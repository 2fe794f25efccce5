"""Tracebacks as text, word for word as Python writes them, but quick to write again.

To look up the source line of a frame and to mark the place in it takes Python about 25 µs, and it
looks whether the file has changed each time. Jobs that fail together fail in the same places, so
the text of a frame is kept by its place in the code: the next one there costs about 1 µs, and
shows the line as it was when it was first needed.
"""

from __future__ import annotations

from traceback import FrameSummary, StackSummary, TracebackException, extract_tb
from types import CodeType, TracebackType
from typing import Final

MOST_PLACES: Final = 2_000
"""Places in the code whose text is kept, some hundred bytes each; beyond that all are forgotten."""

EXPLAINED: Final = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)
"""Errors of which Python says more than their kind and message."""


class _Place(FrameSummary):
    """One place in the code, with the lines that show it."""

    __slots__ = ("code", "shown")

    def __init__(self, code: CodeType, frame: FrameSummary) -> None:
        super().__init__(frame.filename, frame.lineno, frame.name, lookup_line=False)
        self.code = code
        """Kept, so that no other code gets its ``id``."""
        self.shown = "".join(StackSummary.from_list([frame]).format())


class _Stack(StackSummary):
    def format_frame_summary(self, frame_summary: FrameSummary, **options: object) -> str:
        assert isinstance(frame_summary, _Place)
        return frame_summary.shown


class TracebackWriter:
    """Writes tracebacks; remembers the places that were in them. Safe from any thread."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], _Place] = {}

    def write(self, error: BaseException, frames: TracebackType | None) -> str:
        """The error with its causes and contexts; ``frames`` are those to show of its own."""
        stack = self._stack(frames)
        if stack and (last := _last_line(error)) is not None:
            return "".join(("Traceback (most recent call last):\n", *stack.format(), last))
        top = TracebackException(type(error), error, frames, limit=0, compact=True)
        top.stack = stack
        chain = [(top, error)]
        while chain:
            told, error = chain.pop()
            found = [(told.__cause__, error.__cause__), (told.__context__, error.__context__)]
            if isinstance(error, BaseExceptionGroup):
                found += zip(told.exceptions or (), error.exceptions, strict=False)
            for other, its_error in found:
                if other is not None and its_error is not None:
                    other.stack = self._stack(its_error.__traceback__)
                    chain.append((other, its_error))
        return "".join(top.format())

    def _stack(self, frames: TracebackType | None) -> _Stack:
        stack = _Stack()
        while frames is not None:
            stack.append(self._place(frames))
            frames = frames.tb_next
        return stack

    def _place(self, frame: TracebackType) -> _Place:
        code = frame.tb_frame.f_code
        key = (id(code), frame.tb_lasti, frame.tb_lineno)
        place = self._places.get(key)
        if place is None:
            place = _Place(code, extract_tb(frame, limit=1)[0])
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            self._places[key] = place
        return place


def _last_line(error: BaseException) -> str | None:
    """The only line after the frames of an error that stands alone; None: there is more to tell.

    Python's own way to the same line takes four times as long as all the rest.
    """
    is_alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    if not is_alone or isinstance(error, EXPLAINED) or getattr(error, "__notes__", None):
        return None
    kind = type(error)
    module, name = kind.__module__, kind.__qualname__
    if module not in ("builtins", "__main__"):
        name = f"{module}.{name}"
    try:
        message = str(error)
    except BaseException:  # it is the user's code, and Python has words for that
        return None
    return f"{name}: {message}\n" if message else f"{name}\n"
