"""The ways to watch a store: live on a terminal, once in full, or as a stream of JSON lines."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final

from penstock.cli.output import print_json_line
from penstock.cli.terminal import Screen, can_show, standard
from penstock.cli.times import iso, rough
from penstock.cli.top.document import document, print_once
from penstock.cli.top.render import PARTS, ScreenState, frame
from penstock.cli.top.view import StoreWatcher, View
from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError

SHARE: Final = 10
"""A read that took long is followed by a pause so many times as long: watching must be cheap."""

SILENCE: Final = 3.0
"""Seconds without an answer after which the screen says so."""


def watch_store(url: str | None, every: float, *, once: bool, as_json: bool) -> None:
    """Show the store that ``url`` names: on a screen, as lines of JSON, or once as text."""
    clock = SystemClock()
    watcher = StoreWatcher(url, clock)
    if as_json:
        asyncio.run(_print_lines(watcher, clock, every, once=once))
    elif once or not can_show(sys.stdout):
        asyncio.run(_print_one(watcher))
    elif asyncio.run(Top(watcher, standard(), clock, every).run()) == "Ctrl-C":
        raise KeyboardInterrupt


async def _print_one(watcher: StoreWatcher) -> None:
    try:
        print_once(await watcher.read())
    finally:
        await watcher.close()


async def _print_lines(watcher: StoreWatcher, clock: Clock, every: float, *, once: bool) -> None:
    """One snapshot a line; while the store is away, why."""
    is_first = True
    try:
        while True:
            began = clock.monotonic()
            try:
                print_json_line(document(await watcher.read()))
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
        await watcher.close()


def pause(every: float, took: float) -> float:
    """How long to wait after a read that took so long."""
    return max(every - took, SHARE * took)


class Top:
    """The live screen: reads the store, takes keys, draws."""

    def __init__(self, watcher: StoreWatcher, screen: Screen, clock: Clock, every: float) -> None:
        self._watcher = watcher
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

        On failure: the first read's ``PenstockError``: there is nothing to show.
        """
        loop = asyncio.get_running_loop()
        try:
            self._view = await self._watcher.read()
            for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
                loop.add_signal_handler(number, self._end, name)
            loop.add_signal_handler(signal.SIGHUP, self._end, "hang-up")
            with self._screen.taken(loop, self._press):
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(self._read())
                    await self._draw()
                    reading.cancel()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)
            await self._watcher.close()
        return self._ended or ""

    async def _draw(self) -> None:
        """Draw whenever something is new, until told to stop."""
        while self._ended is None:
            self._news.clear()
            if self._view is not None:
                width, height = self._screen.size
                state = ScreenState(
                    width=width,
                    height=height,
                    part=PARTS[self._part],
                    is_paused=self._is_paused,
                    is_plain=self._screen.is_plain,
                    has_keys=self._screen.has_keys,
                    trouble=self._trouble or self._silence(),
                )
                self._screen.show(frame(self._view, state))
            await self._clock.wait(self._news, self._every)

    def _silence(self) -> str | None:
        since = self._asked_at
        waited = 0.0 if since is None else self._clock.monotonic() - since
        return f"the store has not answered for {rough(waited)}" if waited > SILENCE else None

    async def _read(self) -> None:
        """Read the store again and again; while it is away, say so and go on."""
        took = 0.0
        while True:
            await self._clock.sleep(pause(self._every, took))
            if self._is_paused:
                continue
            began = self._asked_at = self._clock.monotonic()
            try:
                self._view = await self._watcher.read()
                self._trouble = None
            except PenstockError as error:
                self._trouble = f"looking again: {error}"
            took, self._asked_at = self._clock.monotonic() - began, None
            self._news.set()

    def _press(self, key: str) -> None:
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
