"""The ways to watch a store: live on a terminal, once in full, or as a stream of JSON lines."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final

from penstock.cli.output import print_json_line
from penstock.cli.store import check_made, shared
from penstock.cli.terminal import Screen, can_show, standard
from penstock.cli.times import iso, rough
from penstock.cli.top.document import document, print_once
from penstock.cli.top.render import PARTS, Look, frame
from penstock.cli.top.view import View, seen
from penstock.clock import Clock, SystemClock
from penstock.engines.engine import Engine
from penstock.engines.records import WorkerInfo
from penstock.errors import PenstockError
from penstock.stores import connect

# --- watch --------------------------------------------------------------------------------------
#
# Asking a store again and again how it does, also one that goes away and comes back.


WINDOW = 10.0
"""Seconds that rates are taken over."""
LIMIT = 100
"""Running jobs, and failed ones, that are asked for."""


class Beats:
    """When each worker's beat was seen to grow, by the clock of whoever looks."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, bool]] = {}

    def note(self, workers: tuple[WorkerInfo, ...], now: float) -> dict[str, float | None]:
        """Look at the workers as they are ``now``; return for how long each stands still.

        One that has not grown before our eyes is given a whole lease to do so: until then nothing
        is known of it.
        """
        before, self._seen = self._seen, {}
        still: dict[str, float | None] = {}
        for info in workers:
            beat, at, has_grown = before.get(info.id, (info.beat, now, False))
            if info.beat != beat:
                at, has_grown = now, True
            self._seen[info.id] = (info.beat, at, has_grown)
            still[info.id] = now - at if has_grown or now - at > (info.lease or 15.0) else None
        return still


class Watch:
    """One look after the other at the store that ``url`` names. Belongs to one loop."""

    def __init__(self, url: str | None, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._engine: Engine | None = None
        self._store = ""
        self._beats = Beats()
        self._known: tuple[str, ...] = ()

    async def look(self) -> View:
        """See how the store does.

        On failure: a ``PenstockError``; the next look reaches for the store anew.
        """
        try:
            engine = await self._reached()
            glance = await engine.glance(WINDOW, LIMIT)
            term = await engine.leader()
        except BaseException:
            await self.close()
            raise
        view = View(
            store=self._store,
            glance=glance,
            window=WINDOW,
            leader=None if term is None else term.holder,
            stillness=self._beats.note(glance.workers, self._clock.monotonic()),
            known=self._known,
        )
        self._known = seen(self._known, view)
        return view

    async def close(self) -> None:
        """Let the store go."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _reached(self) -> Engine:
        if self._engine is None:
            with shared(self._url) as app:
                await check_made(app, self._url)
                self._store = str(app.url)
                engine = connect(app.url.text, self._clock)
            await engine.open()
            self._engine = engine
        return self._engine


# --- live ---------------------------------------------------------------------------------------


SHARE: Final = 10
"""A look that took long is followed by a pause so many times as long: watching must not burden."""

SILENCE: Final = 3.0
"""Seconds without an answer that are worth a word."""


def watch_store(url: str | None, every: float, *, once: bool, as_json: bool) -> None:
    """Show the store that ``url`` names, in the way that suits whoever looks."""
    clock = SystemClock()
    watch = Watch(url, clock)
    if as_json:
        asyncio.run(_print_lines(watch, clock, every, once=once))
    elif once or not can_show(sys.stdout):
        asyncio.run(_print_one(watch))
    elif asyncio.run(Top(watch, standard(), clock, every).run()) == "Ctrl-C":
        raise KeyboardInterrupt


async def _print_one(watch: Watch) -> None:
    try:
        print_once(await watch.look())
    finally:
        await watch.close()


async def _print_lines(watch: Watch, clock: Clock, every: float, *, once: bool) -> None:
    """One snapshot a line; while the store is away, why."""
    is_first = True
    try:
        while True:
            began = clock.monotonic()
            try:
                print_json_line(document(await watch.look()))
            except PenstockError as error:
                if is_first:
                    raise
                print_json_line({"at": iso(clock.now()), "error": str(error)})
            sys.stdout.flush()
            if once:
                return
            is_first = False
            await clock.sleep(pause(every, clock.monotonic() - began))
    finally:
        await watch.close()


def pause(every: float, took: float) -> float:
    """How long to wait after a look that took so long."""
    return max(every - took, SHARE * took)


class Top:
    """The live screen: looks at the store, listens to keys, draws."""

    def __init__(self, watch: Watch, screen: Screen, clock: Clock, every: float) -> None:
        self._watch = watch
        self._screen = screen
        self._clock = clock
        self._every = every
        self._part = 0
        self._is_paused = False
        self._ended: str | None = None
        self._view: View | None = None
        self._trouble: str | None = None
        self._asked_at: float | None = None
        """Since when an answer of the store is awaited."""
        self._news = asyncio.Event()

    async def run(self) -> str:
        """Show the store until told to stop; return what told it.

        On failure: the first look's ``PenstockError``: there is nothing to show.
        """
        loop = asyncio.get_running_loop()
        try:
            self._view = await self._watch.look()
            for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
                loop.add_signal_handler(number, self._end, name)
            loop.add_signal_handler(signal.SIGHUP, self._end, "hang-up")
            with self._screen.taken(loop, self._hear):
                async with asyncio.TaskGroup() as group:
                    looking = group.create_task(self._look())
                    await self._draw()
                    looking.cancel()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)
            await self._watch.close()
        return self._ended or "nobody"

    async def _draw(self) -> None:
        """Draw whenever something is new, until told to stop."""
        while self._ended is None:
            self._news.clear()
            if self._view is not None:
                width, height = self._screen.size
                look = Look(
                    width=width,
                    height=height,
                    part=PARTS[self._part],
                    is_paused=self._is_paused,
                    is_plain=self._screen.is_plain,
                    has_keys=self._screen.has_keys,
                    trouble=self._trouble or self._silence(),
                )
                self._screen.show(frame(self._view, look))
            await self._clock.wait(self._news, self._every)

    def _silence(self) -> str | None:
        """What to say of a store that lets us wait."""
        since = self._asked_at
        waited = 0.0 if since is None else self._clock.monotonic() - since
        return f"the store has not answered for {rough(waited)}" if waited > SILENCE else None

    async def _look(self) -> None:
        """Look at the store again and again; while it is away, say so and go on."""
        took = 0.0
        while True:
            await self._clock.sleep(pause(self._every, took))
            if self._is_paused:
                continue
            began = self._asked_at = self._clock.monotonic()
            try:
                self._view = await self._watch.look()
                self._trouble = None
            except PenstockError as error:
                self._trouble = f"looking again: {error}"
            took, self._asked_at = self._clock.monotonic() - began, None
            self._news.set()

    def _hear(self, key: str) -> None:
        match key:
            case "q" | "Q" | "escape" | "\x03" | "\x04":
                self._end("q")
            case "gone":
                self._end("hang-up")
            case "p" | "P" | " ":
                self._is_paused = not self._is_paused
            case "tab" | "right" | "down":
                self._part = (self._part + 1) % len(PARTS)
            case "left" | "up":
                self._part = (self._part - 1) % len(PARTS)
        self._news.set()

    def _end(self, why: str) -> None:
        self._ended = why
        self._news.set()
