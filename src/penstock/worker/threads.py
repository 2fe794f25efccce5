"""The threads for sync attempts: they take jobs themselves and report back many at a time.

A thread that ends one attempt takes the next without asking the loop. What it has to tell goes into
one list, and the loop is woken once for all that is in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from penstock.clock import Clock
from penstock.core.job import Outcome
from penstock.worker.attempt import Attempt
from penstock.worker.gate import Gate
from penstock.worker.line import Line
from penstock.worker.runner import Runner


class Threads:
    """``size`` threads, started when first needed. ``begun`` is told of each attempt that has a
    timeout, ``finished`` of all, both on the loop; an outcome of None means that nobody wants to
    know it.

    An attempt is in the line of the loop while the gate is shut, then in the inbox of the threads.
    Whoever has the lock decides whether it starts or is withdrawn.
    """

    def __init__(
        self,
        size: int,
        runner: Runner,
        gate: Gate,
        clock: Clock,
        begun: Callable[[Attempt], None],
        finished: Callable[[Attempt, Outcome | None], None],
    ) -> None:
        self.size = size
        self._runner = runner
        self._gate = gate
        self._clock = clock
        self._begun = begun
        self._finished = finished
        self._line = Line()
        self._inside: dict[Attempt, None] = {}
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._news: deque[Callable[[], None]] = deque()
        self._is_ringing = False
        self._lock = threading.Lock()
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()

    @property
    def load(self) -> int:
        """Attempts that wait or run here."""
        return len(self._line) + len(self._inside)

    @property
    def is_quiet(self) -> bool:
        """Nothing runs, and what the gate does not admit will not."""
        with self._lock:
            return self._running == 0

    @property
    def waiting(self) -> list[Attempt]:
        """Those that have not started, the next one first."""
        inside = [attempt for attempt in self._inside if attempt.started_at is None]
        return [*inside, *self._line]

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Let attempts run as soon as a thread is free."""
        self._line.add(attempts)
        self.pump()

    def put_first(self, attempt: Attempt) -> None:
        """Let an attempt run before all others in the line."""
        self._line.add_first(attempt)
        self.pump()

    def pump(self) -> None:
        """Hand the line to the threads, as far as the gate admits it."""
        while self._line and self._gate.admits(self._line.head):
            attempt = self._line.take()
            self._inside[attempt] = None
            self._inbox.put(attempt)
            if len(self._threads) < min(self.size, len(self._inside)):
                self._hire()

    def withdraw(self, attempt: Attempt) -> bool:
        """Take an attempt out of the line; False: it has started."""
        if self._line.remove(attempt):
            return True
        with self._lock:
            if attempt not in self._inside or attempt.started_at is not None:
                return False
            attempt.is_withdrawn = True
            del self._inside[attempt]
            return True

    def interrupt(self, attempt: Attempt) -> None:
        """A thread cannot be stopped: its handler sees ``ctx.cancelled``."""

    def close(self) -> None:
        """Let every thread end after what it runs now. Nothing of it is waited for."""
        for _ in self._threads:
            self._inbox.put(None)

    # --- in a thread ---------------------------------------------------------------------------

    def _hire(self) -> None:
        name = f"penstock-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (attempt := self._inbox.get()) is not None:
            if self._begin(attempt):
                outcome = self._runner.call(attempt)
                with self._lock:
                    self._running -= 1
                self._tell(partial(self._end, attempt, outcome))

    def _begin(self, attempt: Attempt) -> bool:
        with self._lock:
            if attempt.is_withdrawn:
                return False
            if not self._gate.admits(attempt):
                self._tell(partial(self._refused, attempt))
                return False
            attempt.started_at = self._clock.monotonic()
            self._running += 1
        if attempt.spec.timeout is not None:
            self._tell(partial(self._begun, attempt))
        return True

    def _tell(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        # The loop clears the flag before it reads the news, so none is left behind.
        if not self._is_ringing:
            self._is_ringing = True
            try:
                self._loop.call_soon_threadsafe(self._listen)
            except RuntimeError:
                pass  # the loop is closed, and with it everybody who wanted to know

    # --- on the loop ---------------------------------------------------------------------------

    def _listen(self) -> None:
        self._is_ringing = False
        while self._news:
            self._news.popleft()()
        self.pump()

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        del self._inside[attempt]
        self._finished(attempt, outcome)

    def _refused(self, attempt: Attempt) -> None:
        """The gate shut while it was on its way; it waits in the line again."""
        if attempt in self._inside:
            del self._inside[attempt]
            self._line.add([attempt])
