"""When the handler in a thread can be interrupted: from its first step to its last, never outside.

A thread is stopped by an exception that the interpreter raises in it at some step. It must not hit
our own code, nor the clean-up around a handler. So there is one token while the handler runs. The
thread takes it back when the handler has ended; ``interrupt`` takes it to raise the exception. Only
one of the two can have it (``list.pop`` is one step of the interpreter), and there is no lock that
an exception could leave shut:

| the token is taken by | then                                                                 |
|-----------------------|----------------------------------------------------------------------|
| the thread            | the handler has ended by itself: nothing can interrupt it any more   |
| ``interrupt``         | the exception is on its way. Wherever it arrives, and even if the    |
|                       | handler swallows it or has just returned, the call ends              |
|                       | ``Interrupted``                                                      |
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.context import Interrupted


class InterruptGuard:
    """Calls the handler of one attempt, and can interrupt it."""

    __slots__ = ("_is_raised", "_thread", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[None] = []
        self._thread = 0
        self._is_raised = False

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a handler in this thread, and let it be interrupted meanwhile.

        On failure: what the handler raises; ``Interrupted`` if it was interrupted, whatever it did.
        """
        self._thread = threading.get_ident()
        self._tokens.append(None)
        try:
            value = function(*args, **kwargs)
        except BaseException:
            self._shut()
            raise
        if self._shut():
            raise Interrupted
        return value

    def interrupt(self) -> bool:
        """Let ``Interrupted`` be raised in the handler, from any thread; False: none runs."""
        try:
            self._tokens.pop()
        except IndexError:
            return False
        _raise_in(self._thread, Interrupted)
        self._is_raised = True
        return True

    def _shut(self) -> bool:
        """Take the token; True: it was interrupted, and the exception has come or never will."""
        try:
            self._tokens.pop()
        except IndexError:
            pass
        else:
            return False
        try:
            while not self._is_raised:
                pass  # ``interrupt`` is about to raise; each round lets other threads run
            _raise_in(self._thread, None)
        except Interrupted:
            pass  # there is only one, and here it is
        return True


NEVER: Final = InterruptGuard()
"""The guard of what runs in no thread: nothing can be interrupted."""


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Let a thread raise an exception at its next step; None: forget one that has not come yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if exception is None else ctypes.py_object(exception)
    )
