"""Running the demo: open the shop, let two processes work, show it, sum it up.

| if this happens                    | then                                                       |
|------------------------------------|------------------------------------------------------------|
| all jobs have ended                | the workers end, the summary is printed, 0                 |
| q                                  | the same, with what has ended by then                      |
| Ctrl-C, SIGTERM                    | the workers give back what runs and end; one line, 130     |
| a worker is killed                 | its supervisor starts another, and the jobs run again      |
| the demo itself is killed          | its workers see that their sockets close, and end          |
| no worker process can be started   | it ends after a minute and says where the reason is, 1     |
| the store says no                  | the workers end, and the named error is told, 1            |
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
from penstock.cli.top.live import Beats
from penstock.cli.top.view import View
from penstock.clock import Clock, SystemClock
from penstock.demo.folder import Place
from penstock.demo.view import Book, Entry, Moment, Show, print_summary, suited
from penstock.engines.engine import Engine
from penstock.errors import (
    CannotHost,
    EngineReplaced,
    EngineUnavailable,
    ProcessFailed,
)
from penstock.options import EnqueueOptions
from penstock.stores import connect
from penstock.worker.supervisor.replica_messages import ReplicaSpec
from penstock.worker.supervisor.replica_process import spawn
from penstock.worker.supervisor.supervisor import Supervisor, SupervisorSettings

# --- staff --------------------------------------------------------------------------------------
#
# The demo's worker processes: the supervisor of ``penstock worker``, inside the demo's process.
#
# So its processes end by themselves if the demo is killed. What they print goes to a log.


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


class Staff(Supervisor):
    """A supervisor that tells its owner when a person wants to stop."""

    def __init__(self, log: TextIO, clock: Clock, told: Callable[[str], None]) -> None:
        logs.configure("text", "info", log)
        logging.raiseExceptions = False  # a log on a full disk must not be told of on the screen
        super().__init__(
            partial(connect, clock=clock),
            ReplicaSpec(app=APP, options=OPTIONS),
            SupervisorSettings(processes=PROCESSES, hang_limit=20.0),
            clock=clock,
            environ={name: value for name, value in os.environ.items() if "NOTIFY" not in name},
            start=partial(spawn, output=log.fileno()),
        )
        self._told = told

    def stop(self, why: str) -> None:
        self._told(why)
        super().stop(why)

    def finish(self) -> None:
        """The demo itself wants to stop."""
        super().stop("the demo is over")


# --- day ----------------------------------------------------------------------------------------
#
# A day in the shop: what its customers cause, and when.


PEOPLE: Final = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "joe", "kim", "leo")
EVERY: Final = 0.8
"""Seconds from one order to the next."""
ORDERS: Final = 14
"""Orders of a day; a shop that stays has no end of them."""
FIRST_ORDER: Final = 1001
UNSHIPPABLE: Final = 1013
UNPRINTABLE: Final = 1017


@dataclass(frozen=True, slots=True)
class Wish:
    """A job to be enqueued."""

    task: str
    args: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def opening() -> list[Wish]:
    """What is there when the shop opens."""
    return [
        *(_mail(f"{name}@example.com", "News in November") for name in (*PEOPLE, *PEOPLE[::-1])),
        *(Wish("picture.shrink", {"photo": f"photo-{number}"}) for number in range(1, 6)),
        *(_payment(order) for order in range(FIRST_ORDER - 6, FIRST_ORDER)),
        Wish("customer.remind", {"customer": "zoe"}, {"delay": "12s"}),
        Wish("order.ship", {"order": UNSHIPPABLE}),
    ]


def orders(*, without_end: bool) -> Iterator[list[Wish]]:
    """What each order causes, one after the other."""
    for number in count() if without_end else range(ORDERS):
        order = FIRST_ORDER + number
        caused = [_payment(order), _mail(f"{_customer(order)}@example.com", f"Order {order}")]
        if number % 3 == 0:
            caused.append(Wish("picture.shrink", {"photo": f"order-{order}"}))
        if number == 2:
            caused.append(Wish("invoice.render", {"order": UNPRINTABLE}))
        if number % 10 == 9:
            soon = {"delay": "5s"}
            caused.append(Wish("customer.remind", {"customer": _customer(order)}, soon))
        yield caused


def _mail(to: str, subject: str) -> Wish:
    return Wish("mail.send", {"to": to, "subject": subject})


def _payment(order: int) -> Wish:
    return Wish("payment.collect", {"order": order, "customer": _customer(order)})


def _customer(order: int) -> str:
    return PEOPLE[order % len(PEOPLE)]


# --- run ----------------------------------------------------------------------------------------


REFRESH: Final = 0.15
WINDOW: Final = 5.0
"""Seconds that the rate is taken over."""
START_PATIENCE: Final = 60.0
"""Seconds that the first worker process may take to join."""
PROBE: Final = "demo"
"""A cell that is written now and then, to hear from the store if it can be."""


def run(place: Place, *, stays: bool) -> str | None:
    """Run the demo in a folder of its own; return who has stopped it, None: it was over.

    On failure: ``KeyboardInterrupt`` before there was anything to stop, or a ``PenstockError``.
    """
    if os.name != "posix":
        raise CannotHost("penstock demo", "Windows has no supervisor; try it under WSL")
    clock = SystemClock()
    print_line(f"Penstock demo: two worker processes on {place.url}")
    sys.stdout.flush()
    with _environment(place.url), open(place.log, "w", encoding="utf-8") as log:
        demo = Demo(place, suited(), clock, stays=stays)
        asyncio.run(demo.run(lambda told: Staff(log, clock, told)))
    if demo.told is None:
        print_summary(demo.book, place, demo.passed)
    return demo.told


@contextmanager
def _environment(url: str) -> Iterator[None]:
    """Only what the demo says counts, in its processes too."""
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

    def __init__(self, place: Place, show: Show, clock: Clock, *, stays: bool) -> None:
        self.book = Book()
        self.passed = 0.0
        """Seconds from its beginning to its end."""
        self.told: str | None = None
        """Who has stopped it; None: it has ended by itself, or was quit."""
        self._place = place
        self._show = show
        self._clock = clock
        self._stays = stays
        self._is_sold = False
        self._error: Exception | None = None
        self._over = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self, hire: Callable[[Callable[[str], None]], Staff]) -> None:
        """Show the shop at work until all is done, or until somebody stops it."""
        from penstock.demo.shop import app  # it reads the store's place when it is imported

        began = self._clock.monotonic()
        engine = connect(self._place.url, self._clock)
        try:
            async with app:
                await self._enqueue(app, opening())
                await engine.open()
                staff = hire(self._stopped)
                with self._show.on(self._hear):
                    await self._work(staff, app, engine, began)
        finally:
            await engine.close()
        if self._error is not None:
            raise self._error

    async def _work(self, staff: Staff, app: Penstock, engine: Engine, began: float) -> None:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._guarded(self._employ(staff)))
            selling = group.create_task(self._guarded(self._sell(app, engine)))
            watching = group.create_task(self._guarded(self._watch(engine, began)))
            await self._over.wait()
            self.passed = self._clock.monotonic() - began
            selling.cancel()
            if self.told is None:
                staff.finish()
            await working
            watching.cancel()

    async def _guarded(self, part: Coroutine[None, None, None]) -> None:
        """Let a part that fails end the demo in order, instead of at once."""
        try:
            await part
        except Exception as error:
            self._error = self._error or error
            self._over.set()

    async def _employ(self, staff: Staff) -> None:
        code = await staff.run()
        if self.told is not None:  # it ends already, and has yet to give the terminal back
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not self._over.is_set():
            said = f"the worker processes gave up ({code}); they say why in {self._place.log}"
            raise ProcessFailed(said)

    async def _sell(self, app: Penstock, engine: Engine) -> None:
        """Let orders come in; then ask the store now and then if it can still be written."""
        for caused in orders(without_end=self._stays):
            await self._clock.sleep(EVERY)
            await self._enqueue(app, caused)
        self._is_sold = True
        while True:
            await self._clock.sleep(2.0)
            with _passing_faults():
                known = await engine.cell(PROBE)
                await engine.set_cell(PROBE, None, known.version)

    async def _enqueue(self, app: Penstock, wishes: Sequence[Wish]) -> None:
        enqueued = (
            app.aenqueue(wish.task, wish.args, **cast(EnqueueOptions, dict(wish.options)))
            for wish in wishes
        )
        self.book.add(handle.id for handle in await asyncio.gather(*enqueued))

    async def _watch(self, engine: Engine, began: float) -> None:
        """Look at everything again and again, and show it."""
        beats, since = Beats(), self._clock.monotonic()
        while True:
            self._news.clear()
            with _passing_faults():
                view, news = await self._look(engine, beats)
                passed = self._clock.monotonic() - began
                is_over = self._over.is_set()
                self._show.show(Moment(view, self.book, news, passed, self._stays, is_over))
            if not self.book.had_workers and self._clock.monotonic() - since > START_PATIENCE:
                said = f"no worker process has started; they say why in {self._place.log}"
                raise ProcessFailed(said)
            if self._is_sold and not self.book.open:
                self._over.set()
            await self._clock.wait(self._news, REFRESH)

    async def _look(self, engine: Engine, beats: Beats) -> tuple[View, list[Entry]]:
        glance = await engine.glance(WINDOW, 100)
        jobs = await engine.get(list(self.book.open))
        pids = {info.id: info.pid for info in glance.workers}
        news = self.book.note_workers(pids, glance.now) + self.book.note(jobs)
        term = await engine.leader()
        view = View(
            store=self._place.url,
            glance=glance,
            window=WINDOW,
            leader=None if term is None else term.holder,
            stillness=beats.note(glance.workers, self._clock.monotonic()),
        )
        return view, news

    def _stopped(self, why: str) -> None:
        self.told = self.told or why
        self._over.set()

    def _hear(self, key: str) -> None:
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
