"""One child process for one attempt: how a suspect is kept apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from penstock.worker.attempt import Attempt
from penstock.worker.blame import summary_of
from penstock.worker.child_frames import Ended, Request, Unfit
from penstock.worker.child_process import ChildProcess
from penstock.worker.child_talk import Died, talk

Answer = Unfit | Ended | Died


class LoneChild:
    """A child that is made for one attempt. A thread of its own does what blocks.

    ``began`` is called on the loop when the handler is.
    """

    def __init__(self, attempt: Attempt, began: Callable[[], None]) -> None:
        self._attempt = attempt
        self._began = began
        self._child: ChildProcess | None = None
        self._is_killed = False
        self._lock = threading.Lock()

    async def run(self, request: Request) -> Answer:
        """Run the attempt; return the child's last word, or how it died."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        target, args = self._live, (request, loop, answer)
        try:
            threading.Thread(target=target, args=args, name="penstock-child", daemon=True).start()
        except RuntimeError as error:  # no thread to be had
            return Unfit(summary_of(error))
        try:
            return await answer
        except asyncio.CancelledError:
            self.kill()
            raise

    def stop(self) -> None:
        """Let the handler know that it is cancelled."""
        with self._lock:
            child = self._child
        if child is None:
            self.kill()
        else:
            child.stop(1)

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._lock:
            self._is_killed = True
            if self._child is not None:
                self._child.kill()

    # --- in the thread -------------------------------------------------------------------------

    def _live(
        self, request: Request, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Answer]
    ) -> None:
        child = None
        try:
            child = ChildProcess()
            with self._lock:
                self._child = child
                if self._is_killed:
                    child.kill()
            said = talk(child, request, self._attempt, lambda: _tell(loop, self._began))
        except Exception as error:  # no memory for a process, no file descriptors
            said = Unfit(summary_of(error))
        _tell(loop, partial(_answer, answer, said))
        if child is not None and not isinstance(said, Died):
            child.part()


def _answer(answer: asyncio.Future[Answer], said: Answer) -> None:
    if not answer.done():
        answer.set_result(said)


def _tell(loop: asyncio.AbstractEventLoop, news: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(news)
