"""A producer: ``python -m chaos.producer SEED`` enqueues in every way there is, until SIGTERM.

An id is noted as acknowledged only after the call that stored it has returned.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import uuid
from collections import deque
from random import Random
from typing import Any

from chaos.application import TASKS, app
from chaos.notes import note
from penstock.errors import EngineUnavailable
from penstock.handle import Handle
from penstock.task import Sender

THREADS = 3
PAUSE = 0.2
"""Seconds that a thread pauses at most between two calls: workers must keep up."""


class Producer:
    """One thread that enqueues, and sometimes cancels what it has enqueued."""

    def __init__(self, seed: str, stop: threading.Event) -> None:
        self._dice = Random(seed)
        self._stop = stop
        self._recent: deque[Handle[Any]] = deque(maxlen=20)

    def run(self) -> None:
        ways = [self.single, self.many, self.keyed, self.unique, self.delayed, self.awaited]
        while not self._stop.wait(self._dice.uniform(0, PAUSE)):
            try:
                self._dice.choice(ways)()
                if self._dice.random() < 0.1:
                    self.cancel()
            except EngineUnavailable as error:
                note("errors", type(error).__name__)

    def _task(self) -> Sender[..., Any]:
        return self._dice.choice(TASKS)

    def _work(self) -> float:
        """Seconds; a few attempts are long enough to be hit by several kills."""
        return self._dice.choice([0.0, 0.1, 0.5, 2.0])

    def _acknowledge(self, *jobs: Handle[Any]) -> None:
        note("acknowledged", *(job.id for job in jobs))
        self._recent.extend(jobs)

    def single(self) -> None:
        self._acknowledge(self._task().enqueue(self._work()))

    def many(self) -> None:
        works = [(self._work(),) for _ in range(self._dice.randrange(2, 12))]
        self._acknowledge(*self._task().enqueue_many(works))

    def keyed(self) -> None:
        """With an id of its own, and so again and again until it is stored."""
        id, key = f"own-{uuid.uuid4()}", f"key-{self._dice.randrange(5)}"
        task, work = self._task().using(id=id, key=key), self._work()
        while True:
            try:
                return self._acknowledge(task.enqueue(work))
            except EngineUnavailable:
                if self._stop.wait(PAUSE):
                    return None

    def unique(self) -> None:
        task = self._task().using(unique=f"unique-{self._dice.randrange(10)}")
        self._acknowledge(task.enqueue(self._work()))

    def delayed(self) -> None:
        task = self._task().using(delay=self._dice.uniform(0.1, 2.0))
        self._acknowledge(task.enqueue(self._work()))

    def awaited(self) -> None:
        asyncio.run(self._awaited(self._dice.randrange(2, 8)))

    async def _awaited(self, count: int) -> None:
        calls = (self._task().aenqueue(self._work()) for _ in range(count))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, Handle):
                self._acknowledge(answer)
            elif not isinstance(answer, EngineUnavailable):
                raise answer

    def cancel(self) -> None:
        job = self._dice.choice(self._recent)
        note("cancelled", job.id)
        job.cancel()


def main(seed: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    failed = False

    def run(number: int) -> None:
        nonlocal failed
        try:
            Producer(f"{seed}-{number}", stop).run()
        except BaseException:
            failed = True
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # A signal that the system hands to another thread does not end a wait of this one.
        time.sleep(0.1)
    app.close()
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1])
