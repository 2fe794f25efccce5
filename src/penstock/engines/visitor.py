"""Who stands in line at a store's counter: one job, and where the answer goes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.core.job import Draft
from penstock.engines.records import Receipt
from penstock.errors import EngineTimeout

Answer = Callable[[Receipt | None, Exception | None], object]


class Visitor:
    """A caller in line."""

    __slots__ = ("answer", "draft", "has_gone")

    def __init__(self, draft: Draft, answer: Answer) -> None:
        self.draft = draft
        self.answer = answer
        self.has_gone = False

    def tell(self, receipt: Receipt | None) -> None:
        """Answer; whatever becomes of that is the caller's own affair."""
        with suppress(Exception):
            self.answer(receipt, None)

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        self.has_gone = True


def wait_for(
    draft: Draft, enter: Callable[[Visitor], None], timeout: float | None, name: str
) -> Receipt | None:
    """Stand in line and block this thread until there is an answer; None: nothing was stored.

    On failure: what ``enter`` raises, the error that is the answer, ``EngineTimeout``.
    """
    answers: list[tuple[Receipt | None, Exception | None]] = []
    served = threading.Lock()
    served.acquire()

    def answer(receipt: Receipt | None, error: Exception | None) -> None:
        answers.append((receipt, error))
        served.release()

    visitor = Visitor(draft, answer)
    try:
        enter(visitor)
        if not served.acquire(timeout=-1 if timeout is None else timeout):
            raise EngineTimeout(name, f"enqueue took longer than {timeout:g} s")
    finally:
        visitor.leave()
    receipt, error = answers.pop()
    if error is not None:
        raise error
    return receipt
