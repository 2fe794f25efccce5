"""What is measured: named scenarios, each a function of a contender to one figure."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Protocol

SINGLE = 2_000
MANY = 20_000
DRAIN = 10_000
PINGS = 150


class Contender(Protocol):
    """A task queue with a no-op task, opened on an empty store."""

    def enqueue(self, number: int) -> None: ...
    def enqueue_many(self, count: int) -> None: ...
    def drain(self, count: int, *, sync: bool) -> float:
        """Start a worker on ``count`` waiting jobs; return the seconds until all have ended."""

    def ping(self) -> float:
        """Enqueue a job for an idle worker in another process; return the seconds until it ran."""


def enqueue_single(contender: Contender) -> float:
    """Jobs per second, one call each from one thread."""
    contender.enqueue(0)
    return SINGLE / _timed(lambda: _enqueue(contender, SINGLE))


def enqueue_threads(contender: Contender) -> float:
    """Jobs per second, one call each from eight threads."""
    contender.enqueue(0)
    share = SINGLE // 8
    threads = [threading.Thread(target=_enqueue, args=(contender, share)) for _ in range(8)]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return share * 8 / _timed(run)


def enqueue_many(contender: Contender) -> float:
    """Jobs per second in one call; one call each where the contender has no bulk call."""
    contender.enqueue(0)
    return MANY / _timed(lambda: contender.enqueue_many(MANY))


def drain_async(contender: Contender) -> float:
    """No-op async jobs per second, one worker process."""
    contender.enqueue_many(DRAIN)
    return DRAIN / contender.drain(DRAIN, sync=False)


def drain_threads(contender: Contender) -> float:
    """No-op sync jobs per second on threads, one worker process."""
    contender.enqueue_many(DRAIN)
    return DRAIN / contender.drain(DRAIN, sync=True)


def latency_p50(contender: Contender) -> float:
    """Milliseconds from enqueue to start in another, idle process: median."""
    return statistics.median(contender.ping() for _ in range(PINGS)) * 1000


def latency_p99(contender: Contender) -> float:
    """Milliseconds from enqueue to start in another, idle process: the slowest of a hundred."""
    return sorted(contender.ping() for _ in range(PINGS))[int(PINGS * 0.99)] * 1000


def _enqueue(contender: Contender, count: int) -> None:
    for number in range(count):
        contender.enqueue(number)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


SCENARIOS: dict[str, Callable[[Contender], float]] = {
    scenario.__name__: scenario
    for scenario in (
        enqueue_single,
        enqueue_threads,
        enqueue_many,
        drain_async,
        drain_threads,
        latency_p50,
        latency_p99,
    )
}
LESS_IS_BETTER = frozenset({"latency_p50", "latency_p99"})
