"""One attempt alone in a child process: how a suspect is kept apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from penstock.worker.attempt import Attempt
from penstock.worker.blame import summary_of
from penstock.worker.child.frames import Ended, Request, Unfit
from penstock.worker.child.process import ChildProcess
from penstock.worker.child.talk import Died, talk

Answer = Unfit | Ended | Died


class LoneChild:
    """A child while it runs one attempt. A thread of its own does what blocks.

    It is ``spare``, one that has run another before, or a new one. ``began`` is called on the loop
    when the handler is.
    """

    def __init__(
        self, attempt: Attempt, began: Callable[[], None], spare: ChildProcess | None = None
    ) -> None:
        self._attempt = attempt
        self._began = began
        self._spare = spare
        self._child: ChildProcess | None = None
        self._is_killed = False
        self._has_answered = False
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
            if self.left is not None:  # it has answered, and its thread has left it to us
                part_with([self.left])
            raise

    @property
    def left(self) -> ChildProcess | None:
        """The child that has run the attempt and can run another; None: there is none."""
        return self._child if self._has_answered else None

    def stop(self) -> None:
        """Let the handler know that it is cancelled."""
        with self._lock:
            child = self._child
        if child is None:
            self.kill()
        else:
            child.stop(child.requests)

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
            child = self._spare or ChildProcess()
            child.requests += 1
            with self._lock:
                self._child = child
                if self._is_killed:
                    child.kill()
            numbered = replace(request, number=child.requests)
            said = talk(child, numbered, self._attempt, lambda: _tell(loop, self._began))
        except Exception as error:  # no memory for a process, no file descriptors
            said = Unfit(summary_of(error))
        with self._lock:
            self._has_answered = is_left = isinstance(said, Ended) and not self._is_killed
            if not is_left:
                self._child = None
        is_heard = _tell(loop, partial(_answer, answer, said))
        if child is not None and not isinstance(said, Died) and not (is_left and is_heard):
            child.part()


def _answer(answer: asyncio.Future[Answer], said: Answer) -> None:
    if not answer.done():
        answer.set_result(said)


def _tell(loop: asyncio.AbstractEventLoop, news: Callable[[], object]) -> bool:
    """Call it on the loop; False: the loop is closed, and nobody waits."""
    try:
        loop.call_soon_threadsafe(news)
    except RuntimeError:
        return False
    return True


def part_with(children: Sequence[ChildProcess]) -> None:
    """Let children end in peace, in a thread that nobody waits for."""

    def part() -> None:
        for child in children:
            child.part()

    try:
        threading.Thread(target=part, name="penstock-parting", daemon=True).start()
    except RuntimeError:  # no thread to be had
        for child in children:
            child.kill()
