"""A thread with an event loop of its own, for what must go on while the worker's loop is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.worker.log import WorkerLog

LINGER: Final = 5.0
"""Real seconds that the thread may take to end before it is left behind."""


class SideThread:
    """Runs one coroutine in a thread; seen from the worker's loop, it is one task.

    Cancelling ``run`` cancels the coroutine and waits for it. What the coroutine raises, ``run``
    raises.
    """

    def __init__(
        self, name: str, main: Callable[[], Coroutine[Any, Any, None]], log: WorkerLog
    ) -> None:
        self._name = name
        self._main = main
        self._log = log
        self._error: BaseException | None = None
        self._inner: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._is_stopping = False
        self._lock = threading.Lock()

    async def run(self) -> None:
        """Live as long as the coroutine."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        thread = threading.Thread(
            target=self._live, args=(loop, ended), name=f"penstock-{self._name}", daemon=True
        )
        thread.start()
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self._stop()
            await self._linger(ended)
            raise
        if self._error is not None:
            raise self._error

    async def _linger(self, ended: asyncio.Event) -> None:
        """Wait for the thread, however often this is cancelled: it has a handle to close."""
        while not ended.is_set():
            try:
                async with asyncio.timeout(LINGER):
                    await ended.wait()
            except asyncio.CancelledError:
                continue
            except TimeoutError:
                self._log.warning("thread left behind", thread=self._name)
                return

    # --- in the thread -------------------------------------------------------------------------

    def _live(self, outer: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
        try:
            asyncio.run(self._guarded())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            try:
                outer.call_soon_threadsafe(ended.set)
            except RuntimeError:
                pass  # the worker's loop is closed: it did not wait

    async def _guarded(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._inner = (asyncio.get_running_loop(), task)
            if self._is_stopping:
                return
        try:
            await self._main()
        finally:
            with self._lock:
                self._inner = None

    def _stop(self) -> None:
        with self._lock:
            self._is_stopping = True
            if self._inner is not None:
                loop, task = self._inner
                loop.call_soon_threadsafe(task.cancel)
