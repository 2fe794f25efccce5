"""The threads for sync attempts: they take jobs themselves and report back many at a time.

A thread that ends one attempt takes the next without asking the loop. What it has to tell goes into
one list, and the loop is woken once for all that is in it. Where slots are kept for urgent jobs, an
attempt is handed over only when it can start, because only the loop knows what runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from penstock.clock import Clock
from penstock.core.job import Outcome
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.pool import AttemptQueue, StartGate
from penstock.worker.reserve import Reserve
from penstock.worker.runner import Runner


class ThreadPool:
    """``size`` threads, started when first needed.

    An attempt is in the loop's queue while the gate is shut, then in the inbox of the threads.
    ``begun`` and ``finished`` are called as in ``AsyncPool``.
    """

    def __init__(
        self,
        size: int,
        runner: Runner,
        gate: StartGate,
        clock: Clock,
        begun: Callable[[Attempt], None],
        finished: Callable[[Attempt, Outcome | None], None],
        reserve: Mapping[int, int] | None = None,
    ) -> None:
        self.size = size
        self._runner = runner
        self._gate = gate
        self._clock = clock
        self._begun = begun
        self._finished = finished
        self._reserve = Reserve(size, reserve) if reserve else None
        self._queue = AttemptQueue()
        self._inside: dict[Attempt, None] = {}
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._news: deque[Callable[[], None]] = deque()
        self._is_told = False
        self._lock = threading.Lock()
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()

    @property
    def load(self) -> int:
        return len(self._queue) + len(self._inside)

    @property
    def is_quiet(self) -> bool:
        """Nothing runs, and what the gate does not admit will not."""
        with self._lock:
            return self._running == 0

    @property
    def waiting(self) -> list[Attempt]:
        return [each for each in (*list(self._inside), *self._queue) if each.is_waiting]

    def put(self, attempts: Sequence[Attempt]) -> None:
        self._queue.add(attempts)
        self.pump()

    def put_first(self, attempt: Attempt) -> None:
        self._queue.appendleft(attempt)
        self.pump()

    def pump(self) -> None:
        """Hand the queue to the threads, as far as the gate and the reserve admit it."""
        while self._queue and self._gate.admits(self._queue[0]):
            if not self._makes_room(self._queue[0]):
                return
            attempt = self._queue.popleft()
            self._inside[attempt] = None
            self._inbox.put(attempt)
            if len(self._threads) < min(self.size, len(self._inside)):
                self._start_thread()

    def _makes_room(self, attempt: Attempt) -> bool:
        if self._reserve is None:
            return True
        priority = attempt.job.priority
        if len(self._inside) >= self.size or not self._reserve.admits(priority):
            return False
        self._reserve.count(priority, 1)
        return True

    def withdraw(self, attempt: Attempt) -> bool:
        if not attempt.seize():
            return False
        self.discard(attempt)
        return True

    def discard(self, attempt: Attempt) -> None:
        if not self._queue.withdraw(attempt):
            self._forget(attempt)

    def _forget(self, attempt: Attempt) -> bool:
        if attempt not in self._inside:
            return False
        del self._inside[attempt]
        if self._reserve is not None:
            self._reserve.count(attempt.job.priority, -1)
        return True

    def interrupt(self, attempt: Attempt) -> None:
        """Interrupt the handler; one that is only cancelled may first end by itself."""
        if attempt.ending is not Ending.CANCEL:
            attempt.guard.interrupt()

    def insist(self, attempt: Attempt) -> None:
        """Interrupt the handler, unless it was before: it can be told only once."""
        attempt.guard.interrupt()

    def close(self) -> None:
        """Let every thread end after what it runs now. Nothing of it is waited for."""
        for _ in self._threads:
            self._inbox.put(None)

    # --- in a thread ---------------------------------------------------------------------------

    def _start_thread(self) -> None:
        name = f"penstock-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._threads.pop()
            if not self._threads:
                self._fail_inbox(error)

    def _fail_inbox(self, error: Exception) -> None:
        """No thread will ever take what is in the inbox."""
        while True:
            try:
                attempt = self._inbox.get_nowait()
            except Empty:
                return
            if attempt is not None and attempt.seize():
                outcome = self._runner.broke(attempt, self._no_thread(attempt, error))
                self._tell(partial(self._end, attempt, outcome))

    def _no_thread(self, attempt: Attempt, error: Exception) -> Exception:
        """What an attempt fails with if no thread can be started."""
        return error

    def _serve(self) -> None:
        while (attempt := self._inbox.get()) is not None:
            if self._begin(attempt):
                if attempt.spec.is_watched:
                    self._tell(partial(self._begun, attempt))
                outcome = self._runner.call(attempt)
                with self._lock:
                    self._running -= 1
                self._tell(partial(self._end, attempt, outcome))

    def _begin(self, attempt: Attempt) -> bool:
        if not attempt.is_waiting:
            return False
        with self._lock:
            if not self._gate.admits(attempt):
                self._tell(partial(self._refused, attempt))
                return False
            if not attempt.seize():
                return False
            attempt.started_at = self._clock.monotonic()
            self._running += 1
        return True

    def _tell(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        # The loop clears the flag before it reads the news, so none is left behind.
        if not self._is_told:
            self._is_told = True
            try:
                self._loop.call_soon_threadsafe(self._take_news)
            except RuntimeError:
                pass  # the loop is closed: the worker has ended

    # --- on the loop ---------------------------------------------------------------------------

    def _take_news(self) -> None:
        self._is_told = False
        while self._news:
            self._news.popleft()()
        self.pump()

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._forget(attempt)
        self._finished(attempt, outcome)

    def _refused(self, attempt: Attempt) -> None:
        """The gate shut while it was on its way: it waits in the queue again."""
        if self._forget(attempt) and attempt.is_waiting:
            self._queue.add([attempt])
