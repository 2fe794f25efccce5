"""Three ways to host a worker: beside a loop, in a thread, or as the whole process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import fields
from typing import Any, Final, Self, TypedDict

from penstock.clock import Clock
from penstock.config import Settings
from penstock.context import REAL
from penstock.core.job import priority_number
from penstock.core.units import Duration, seconds, size
from penstock.engines.engine import Engine
from penstock.errors import BadOption, CannotHost
from penstock.events import Bus, LeaderElected
from penstock.leader.chores import Rescue, all_chores
from penstock.leader.election import Election, ttl_beside
from penstock.leader.leader import Leader
from penstock.options import several, word
from penstock.sync import is_on_a_loop
from penstock.worker.child.find_task import is_child
from penstock.worker.runtime import loop_factory, spared
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervisor.replica_process import is_supervised
from penstock.worker.worker import Upkeep, Worker

EXIT_PATIENCE: Final = 5.0
BLOCKED: Final = 1.0
"""Seconds after which a loop that has not heard a signal counts as blocked."""


LoopClient = Callable[[], AbstractAsyncContextManager[None]]
"""Gives the worker's loop a client of its own, for the jobs that its tasks enqueue."""


class WorkerOptions(TypedDict, total=False):
    """What ``app.worker(...)`` and its kin take; None, or left out: as the app's settings say."""

    queues: str | Iterable[str] | None
    """By default "default", and every queue that a task of the app declares."""
    concurrency: int | None
    threads: int | None
    children: int | None
    reserve: str | Mapping[str | int, int] | None
    """Slots that are kept for a priority: "high=2", or {"high": 2}."""
    prefetch: int | None
    patience: Duration | None
    lease: Duration | None
    drain: Duration | None
    grace: Duration | None
    stall_limit: Duration | None
    max_jobs: int | None
    max_memory: int | str | None
    """Bytes, or text such as "512MB"."""
    poll: Duration | None
    leads: bool | None
    name: str | None


_DURATIONS: Final = frozenset({"patience", "lease", "drain", "grace", "stall_limit", "poll"})
_COUNTS: Final = frozenset({"concurrency", "threads", "children", "prefetch", "max_jobs"})


def worker_settings(
    given: WorkerOptions, settings: Settings, queues: Iterable[str]
) -> WorkerSettings:
    """The settings of one worker; ``queues`` are those of an app that does not say."""
    shared = {field.name for field in fields(WorkerSettings)} & {
        field.name for field in fields(Settings)
    }
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in shared}
    chosen["queues"] = tuple(dict.fromkeys(queues))
    for name, value in given.items():
        if name not in WorkerOptions.__annotations__:
            known = ", ".join(WorkerOptions.__annotations__)
            raise BadOption(name, value, f"no such option of a worker; there are {known}")
        if value is not None:
            chosen[name] = _checked(name, value, settings)
    return WorkerSettings(**chosen)


def _checked(name: str, value: Any, settings: Settings) -> Any:
    if name == "queues":
        # As the environment and the command line write them, too: "mail,default".
        names = value.split(",") if isinstance(value, str) else several(name, value)
        return tuple(word(name, queue) for queue in names)
    if name == "name":
        return word(name, value)
    if name == "reserve":
        return _reserve(value, settings.priorities)
    if name == "max_memory":
        return size(value, name=name)
    if name in _COUNTS and (isinstance(value, bool) or not isinstance(value, int)):
        raise BadOption(name, value, "give a whole number")
    if name == "leads" and not isinstance(value, bool):
        raise BadOption(name, value, "give True or False")
    return seconds(value, name=name) if name in _DURATIONS else value


def _reserve(value: Any, priorities: Mapping[str, int]) -> dict[int, int]:
    """Slots per priority, from a mapping or from text such as ``high=2,normal=1``."""
    bad = BadOption("reserve", value, "give priorities and slots, such as 'high=2', or {'high': 2}")
    slots_by_label = value
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")]
        slots_by_label = {label.strip(): slots.strip() for label, _, slots in parts}
    if not isinstance(slots_by_label, Mapping):
        raise bad
    kept: dict[int, int] = {}
    for label, slots in slots_by_label.items():
        if isinstance(slots, str) and slots.isdecimal():
            slots = int(slots)
        if type(slots) is not int or slots < 1:
            raise bad
        number = int(label) if isinstance(label, str) and _is_number(label) else label
        level = priority_number(number, priorities)
        kept[level] = kept.get(level, 0) + slots
    return kept


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def upkeep(settings: WorkerSettings, clock: Clock, bus: Bus) -> Upkeep | None:
    """What a worker with these settings does for all: it stands for election, and leads."""
    if not settings.leads:
        return None

    def elected(leader: str, epoch: int) -> None:
        if bus.wants(LeaderElected):
            bus.publish(LeaderElected(at=clock.now(), leader=leader, epoch=epoch))

    async def lead(engine: Engine, candidate: str, wrote_at: Callable[[], float]) -> None:
        ttl = min(settings.leader_ttl, ttl_beside(settings.lease))
        election = Election(candidate, clock, ttl)
        batch = settings.upkeep_batch
        rescue = Rescue(settings.lease, clock, wrote_at, batch, settings.crash_limit)
        chores = all_chores(settings.upkeep_every, batch)
        await Leader(election, rescue, chores, clock, elected).run(engine)

    return lead


def _refuse_in_child(call: str) -> None:
    """Raise ``CannotHost`` where a main script is run again to find its isolated tasks."""
    if is_child():
        why = "this is a child process of one, which runs this script again to find its tasks"
        raise CannotHost(call, f"{why}; put it under `if __name__ == '__main__':`")


def _refuse_while_loading(call: str) -> None:
    """Raise ``CannotHost`` where `penstock worker` imports the module: it would never be done."""
    if is_supervised() and threading.current_thread() is threading.main_thread():
        why = "`penstock worker` loads this module, and runs its jobs itself"
        raise CannotHost(call, f"{why}; put it under `if __name__ == '__main__':`")


# --- beside a loop ------------------------------------------------------------------------------


@asynccontextmanager
async def beside(worker: Worker, loop_client: LoopClient) -> AsyncIterator[Worker]:
    """Run the worker on this loop from its first lease until the block ends, then drain it.

    A block that ends in an exception does not wait: what runs is given back. What ends the worker
    before the block does is logged then, and raised when the block ends.
    """
    _refuse_in_child("worker")
    async with loop_client():
        running = asyncio.create_task(worker.run(), name="penstock worker")
        ready = asyncio.create_task(worker.ready.wait())
        try:
            await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.add_done_callback(_notice)
            yield worker
        except BaseException:
            worker.stop(0)
            raise
        finally:
            ready.cancel()
            worker.stop()
            await running


def _notice(running: asyncio.Task[None]) -> None:
    error = None if running.cancelled() else running.exception()
    if error is not None:
        _log_end(error)


def _log_end(error: BaseException) -> None:
    logging.getLogger("penstock").error("worker_ended error=%r", error, exc_info=error)


# --- in a thread --------------------------------------------------------------------------------


class WorkerThread:
    """A worker in a thread of an application, with a loop of its own and no signal handlers.

    It does not keep the interpreter from exiting: what still runs then is given back.
    """

    def __init__(self, worker: Worker, loop_client: LoopClient) -> None:
        self.worker = worker
        self._loop_client = loop_client
        self._pid = 0
        self._error: BaseException | None = None
        # Made when it starts: one that was made before a fork counts as ended after it.
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """It was started and has not stopped yet."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Self:
        """Start it, once, and do not wait: a store that is away is waited for in the thread.

        What ends it early, such as a start-up hook that raises, is logged there and raised by
        ``stop``; until then ``is_alive`` tells of it.
        """
        if self._thread is not None:
            why = "it was started before; make another with app.worker_thread()"
            raise CannotHost("start", why)
        _refuse_in_child("start")
        self._pid = os.getpid()
        # Found here: what is imported once the main thread has ended may fail to.
        thread = threading.Thread(
            target=self._run, args=(loop_factory(),), name="penstock worker", daemon=True
        )
        thread.start()
        self._thread = thread
        atexit.register(self._stop_at_exit)
        return self

    def stop(self, drain: Duration | None = None) -> None:
        """Stop it now and wait: attempts may go on for ``drain``, by default as the settings say.

        On failure: what ended the worker, if it did not end well.
        """
        self._end(lambda: self.worker.stop(None if drain is None else seconds(drain, name="drain")))

    def stop_when_empty(self) -> None:
        """Let it do what is there and due, then stop, and wait for that."""
        self._end(self.worker.stop_when_empty)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(0 if kind else None)

    def _end(self, stop: Callable[[], None]) -> None:
        if self._pid != os.getpid() or self._thread is None:
            return
        stop()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._work())
        except BaseException as error:
            self._error = error
            _log_end(error)
        finally:
            atexit.unregister(self._stop_at_exit)

    async def _work(self) -> None:
        async with self._loop_client():
            await self.worker.run()

    def _stop_at_exit(self) -> None:
        if self._pid == os.getpid() and self._thread is not None:
            self.worker.stop(0)
            self._thread.join(EXIT_PATIENCE)


# --- as the whole process -----------------------------------------------------------------------


def run_process(worker: Worker, loop_client: LoopClient, *, until_empty: bool = False) -> None:
    """Run the worker until SIGTERM or Ctrl-C, then drain it; a second one gives back what runs."""
    if is_on_a_loop():
        why = "a loop runs here; use `async with app.worker()`, or app.worker_thread()"
        raise CannotHost("run_worker", why)
    _refuse_in_child("run_worker")
    _refuse_while_loading("run_worker")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(until_signal(worker, worker.stop, loop_client, until_empty=until_empty))


async def until_signal(
    worker: Worker,
    stop: Callable[[float | None], None],
    loop_client: LoopClient,
    *,
    until_empty: bool,
) -> None:
    """Run the worker in a process that has nothing else to do; each signal calls ``stop``."""
    drains: Iterator[float | None] = iter((None, 0.0))
    with spared(), signals(lambda: stop(next(drains, 0.0))):
        async with loop_client():
            await worker.run(until_empty=until_empty)


@contextmanager
def signals(
    call: Callable[[], None],
    numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> Iterator[None]:
    """Call it on the loop for each of these signals; only the main thread hears them.

    One that finds the loop blocked, and two before it unheard for ``BLOCKED``, ends the process.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    heard: list[signal.Signals] = []
    unheard: list[float] = []

    def hear() -> None:
        unheard.clear()
        call()

    def insist(number: int, _: object) -> None:
        unheard.append(REAL.monotonic())
        if len(unheard) > 2 and unheard[-1] - unheard[0] >= BLOCKED:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in before:
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            try:
                loop.add_signal_handler(number, hear)
                # The loop wakes up without the handler that it has set: it reads a socket.
                signal.signal(number, insist)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))
            heard.append(number)
    try:
        yield
    finally:
        for number in heard:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, before[number])
