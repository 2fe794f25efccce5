"""Run the demo: enqueue the jobs of a shop, run two worker processes, show them, sum up.

| if this happens                    | then                                                       |
|------------------------------------|------------------------------------------------------------|
| all jobs have ended                | the workers end, the summary is printed, 0                 |
| q                                  | the same, with what has ended by then                      |
| Ctrl-C, SIGTERM                    | the workers give back what runs and end; one line, 130     |
| a worker is killed                 | its supervisor starts another, and the jobs run again      |
| the demo itself is killed          | its workers see that their sockets close, and end          |
| no worker process can be started   | it ends after a minute and names the log, 1                |
| the store fails for good           | the workers end, and the error is printed, 1               |
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, TextIO, cast

from penstock import logs
from penstock.app import Penstock
from penstock.cli.output import print_line
from penstock.cli.top.view import BeatAges, View
from penstock.clock import Clock, SystemClock
from penstock.demo.folder import DemoFolder
from penstock.demo.history import HistoryEntry, JobHistory, print_summary
from penstock.demo.view import DemoState, Display, choose_display
from penstock.engines import reads
from penstock.engines.engine import Engine
from penstock.errors import (
    CannotHost,
    EngineReplaced,
    EngineUnavailable,
    ProcessFailed,
)
from penstock.leader.election import present_term
from penstock.options import EnqueueOptions
from penstock.stores import connect
from penstock.worker.supervisor.replica_messages import ReplicaSpec
from penstock.worker.supervisor.replica_process import spawn
from penstock.worker.supervisor.supervisor import Supervisor, SupervisorSettings

APP: Final = "penstock.demo.shop:app"
PROCESSES: Final = 2
OPTIONS: Final = {
    "concurrency": 5,
    "threads": 3,
    "children": 2,
    "drain": 0.0,
    "grace": 2.0,
    "lease": 10.0,
    "name": "demo",
}


class DemoSupervisor(Supervisor):
    """The supervisor of ``penstock worker``, in the demo's own process; its output goes to a log.

    If the demo is killed, its worker processes end by themselves.
    """

    def __init__(self, log: TextIO, clock: Clock, on_stop: Callable[[str], None]) -> None:
        logs.configure("text", "info", log)
        logging.raiseExceptions = False  # a full disk under the log must not garble the screen
        super().__init__(
            partial(connect, clock=clock),
            ReplicaSpec(app=APP, options=OPTIONS),
            SupervisorSettings(processes=PROCESSES, hang_limit=20.0),
            clock=clock,
            environ={name: value for name, value in os.environ.items() if "NOTIFY" not in name},
            start=partial(spawn, output=log.fileno()),
        )
        self._on_stop = on_stop

    def stop(self, why: str) -> None:
        self._on_stop(why)
        super().stop(why)

    def finish(self) -> None:
        """Stop because the demo is over."""
        super().stop("the demo is over")


# --- the jobs of a day --------------------------------------------------------------------------

PEOPLE: Final = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "joe", "kim", "leo")
EVERY: Final = 0.8
"""Seconds from one order to the next."""
ORDERS: Final = 14
"""Orders of a day; a shop that stays has no end of them."""
FIRST_ORDER: Final = 1001
UNSHIPPABLE: Final = 1013
UNPRINTABLE: Final = 1017


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job to be enqueued: the call and its options."""

    task: str
    args: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def opening_jobs() -> list[DemoJob]:
    """What is there when the shop opens."""
    return [
        *(_mail(f"{name}@example.com", "News in November") for name in (*PEOPLE, *PEOPLE[::-1])),
        *(DemoJob("picture.shrink", {"photo": f"photo-{number}"}) for number in range(1, 6)),
        *(_payment(order) for order in range(FIRST_ORDER - 6, FIRST_ORDER)),
        DemoJob("customer.remind", {"customer": "zoe"}, {"delay": "12s"}),
        DemoJob("order.ship", {"order": UNSHIPPABLE}),
    ]


def order_jobs(*, without_end: bool) -> Iterator[list[DemoJob]]:
    """What each order causes, one after the other."""
    for number in count() if without_end else range(ORDERS):
        order = FIRST_ORDER + number
        caused = [_payment(order), _mail(f"{_customer(order)}@example.com", f"Order {order}")]
        if number % 3 == 0:
            caused.append(DemoJob("picture.shrink", {"photo": f"order-{order}"}))
        if number == 2:
            caused.append(DemoJob("invoice.render", {"order": UNPRINTABLE}))
        if number % 10 == 9:
            soon = {"delay": "5s"}
            caused.append(DemoJob("customer.remind", {"customer": _customer(order)}, soon))
        yield caused


def _mail(to: str, subject: str) -> DemoJob:
    return DemoJob("mail.send", {"to": to, "subject": subject})


def _payment(order: int) -> DemoJob:
    return DemoJob("payment.collect", {"order": order, "customer": _customer(order)})


def _customer(order: int) -> str:
    return PEOPLE[order % len(PEOPLE)]


# --- the run ------------------------------------------------------------------------------------

REFRESH: Final = 0.15
WINDOW: Final = 5.0
"""Seconds that the rate is taken over."""
START_TIMEOUT: Final = 60.0
"""Seconds that the first worker process may take to join."""
PROBE: Final = "demo"
"""A cell that is written now and then, to see that the store can be written."""


def run(folder: DemoFolder, *, stays: bool) -> str | None:
    """Run the demo in a folder of its own; return the signal that stopped it, None: it was over.

    On failure: ``KeyboardInterrupt`` before there was anything to stop, or a ``PenstockError``.
    """
    if os.name != "posix":
        raise CannotHost("penstock demo", "Windows has no supervisor; try it under WSL")
    clock = SystemClock()
    print_line(f"Penstock demo: two worker processes on {folder.url}")
    sys.stdout.flush()
    with _environment(folder.url), open(folder.log, "w", encoding="utf-8") as log:
        demo = Demo(folder, choose_display(), clock, stays=stays)
        asyncio.run(demo.run(lambda on_stop: DemoSupervisor(log, clock, on_stop)))
    if demo.stopped_by is None:
        print_summary(demo.history, folder, demo.passed)
    return demo.stopped_by


@contextmanager
def _environment(url: str) -> Iterator[None]:
    """Let no setting of the user reach the demo or its worker processes."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]
    os.environ["PENSTOCK_URL"] = url
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Demo:
    """One run of the demo. Belongs to one loop."""

    def __init__(self, folder: DemoFolder, display: Display, clock: Clock, *, stays: bool) -> None:
        self.history = JobHistory()
        self.passed = 0.0
        """Seconds from its beginning to its end."""
        self.stopped_by: str | None = None
        """The signal that stopped it; None: it has ended by itself, or by the key q."""
        self._folder = folder
        self._display = display
        self._clock = clock
        self._stays = stays
        self._has_all_orders = False
        self._error: Exception | None = None
        self._over = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self, supervise: Callable[[Callable[[str], None]], DemoSupervisor]) -> None:
        """Display the shop at work until all jobs have ended, or until it is stopped."""
        from penstock.demo.shop import app  # it reads PENSTOCK_URL when it is imported

        began = self._clock.monotonic()
        engine = connect(self._folder.url, self._clock)
        try:
            async with app:
                await self._enqueue(app, opening_jobs())
                await engine.open()
                supervisor = supervise(self._note_stop)
                with self._display.on(self._press):
                    await self._work(supervisor, app, engine, began)
        finally:
            await engine.close()
        if self._error is not None:
            raise self._error

    async def _work(
        self, supervisor: DemoSupervisor, app: Penstock, engine: Engine, began: float
    ) -> None:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._guarded(self._supervise(supervisor)))
            ordering = group.create_task(self._guarded(self._take_orders(app, engine)))
            watching = group.create_task(self._guarded(self._watch(engine, began)))
            await self._over.wait()
            self.passed = self._clock.monotonic() - began
            ordering.cancel()
            if self.stopped_by is None:
                supervisor.finish()
            await working
            watching.cancel()

    async def _guarded(self, part: Coroutine[None, None, None]) -> None:
        """Let a part that fails end the demo in order, instead of at once."""
        try:
            await part
        except Exception as error:
            self._error = self._error or error
            self._over.set()

    async def _supervise(self, supervisor: DemoSupervisor) -> None:
        code = await supervisor.run()
        if self.stopped_by is not None:  # it ends already, and has yet to give the terminal back
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not self._over.is_set():
            said = f"the worker processes gave up ({code}); they say why in {self._folder.log}"
            raise ProcessFailed(said)

    async def _take_orders(self, app: Penstock, engine: Engine) -> None:
        """Enqueue the orders; then write now and then, to see that the store can be written."""
        for caused in order_jobs(without_end=self._stays):
            await self._clock.sleep(EVERY)
            await self._enqueue(app, caused)
        self._has_all_orders = True
        while True:
            await self._clock.sleep(2.0)
            with _passing_faults():
                known = await engine.cell(PROBE)
                await engine.set_cell(PROBE, None, known.version)

    async def _enqueue(self, app: Penstock, jobs: Sequence[DemoJob]) -> None:
        enqueued = (
            app.aenqueue(job.task, job.args, **cast(EnqueueOptions, dict(job.options)))
            for job in jobs
        )
        self.history.add(handle.id for handle in await asyncio.gather(*enqueued))

    async def _watch(self, engine: Engine, began: float) -> None:
        beats, since = BeatAges(), self._clock.monotonic()
        while True:
            self._news.clear()
            with _passing_faults():
                view, news = await self._read(engine, beats)
                passed = self._clock.monotonic() - began
                is_over = self._over.is_set()
                self._display.show(
                    DemoState(view, self.history, news, passed, self._stays, is_over)
                )
            if not self.history.had_workers and self._clock.monotonic() - since > START_TIMEOUT:
                said = f"no worker process has started; they say why in {self._folder.log}"
                raise ProcessFailed(said)
            if self._has_all_orders and not self.history.open:
                self._over.set()
            await self._clock.wait(self._news, REFRESH)

    async def _read(self, engine: Engine, beats: BeatAges) -> tuple[View, list[HistoryEntry]]:
        seen = await reads.overview(engine, WINDOW, 100)
        jobs = await engine.get(list(self.history.open))
        pids = {info.id: info.pid for info in seen.workers}
        news = self.history.note_workers(pids, seen.now) + self.history.note(jobs)
        term = await present_term(engine)
        view = View(
            store=self._folder.url,
            seen=seen,
            window=WINDOW,
            leader=None if term is None else term.holder,
            stillness=beats.note(seen.workers, self._clock.monotonic()),
        )
        return view, news

    def _note_stop(self, why: str) -> None:
        self.stopped_by = self.stopped_by or why
        self._over.set()

    def _press(self, key: str) -> None:
        if key in ("q", "Q", "escape"):
            self._over.set()
        self._news.set()


@contextmanager
def _passing_faults() -> Iterator[None]:
    """Let a store that is busy just now be asked again; one that was replaced is gone for good."""
    try:
        yield
    except EngineReplaced:
        raise
    except EngineUnavailable:
        pass
