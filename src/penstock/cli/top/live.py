"""The ways to watch a store: live on a terminal, once in full, or as a stream of JSON lines."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from penstock.app import Penstock
from penstock.cli.output import print_json_line
from penstock.cli.terminal import Screen, can_show, standard
from penstock.cli.times import iso, rough
from penstock.cli.top.document import document, print_once
from penstock.cli.top.overlay import HELP, Overlay
from penstock.cli.top.render import PARTS, ScreenState, frame, listed_running
from penstock.cli.top.view import StoreWatcher, View
from penstock.clock import Clock, SystemClock
from penstock.core.job import State
from penstock.errors import PenstockError

SHARE: Final = 10
"""A read that took long is followed by a pause so many times as long: watching must be cheap."""

SILENCE: Final = 3.0
"""Seconds without an answer after which the screen says so."""


def watch_store(app: Penstock, named: str, every: float, *, once: bool, as_json: bool) -> None:
    """Show an app's store: on a screen, as lines of JSON, or once as text. ``named`` tells where
    the name of the store is from.
    """
    clock = SystemClock()
    watcher = StoreWatcher(app, named, clock)
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
        self._selected: str | None = None
        """The job that is marked."""
        self._overlay: Overlay | None = None
        self._confirming: str | None = None
        """The job whose cancellation is asked about."""
        self._acting: asyncio.Task[None] | None = None
        """What a key has begun: an explanation or a cancellation."""
        self._group: asyncio.TaskGroup
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
                async with asyncio.TaskGroup() as self._group:
                    reading = self._group.create_task(self._read())
                    await self._draw()
                    reading.cancel()
                    if self._acting is not None:
                        self._acting.cancel()
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
                    selected=self._selected,
                    overlay=self._overlay,
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
                if self._selected not in self._listed():
                    self._selected = None
            except PenstockError as error:
                self._trouble = f"looking again: {error}"
            took, self._asked_at = self._clock.monotonic() - began, None
            self._news.set()

    # --- keys ----------------------------------------------------------------------------------

    def _press(self, key: str) -> None:
        if key in ("\x03", "\x04"):
            self._end("q")
        elif key == "gone":
            self._end("hang-up")
        elif self._overlay is not None and key != "resize":
            self._leave_overlay(key)
        else:
            self._press_on_panels(key)
        self._news.set()

    def _press_on_panels(self, key: str) -> None:
        match key:
            case "q" | "Q" | "escape":
                self._end("q")
            case "p" | "P" | " ":
                self._is_paused = not self._is_paused
            case "tab" | "right":
                self._choose_part(1)
            case "left":
                self._choose_part(-1)
            case "down":
                self._select(1)
            case "up":
                self._select(-1)
            case "?" | "h":
                self._overlay = HELP
            case "e" | "E" if self._selected is not None:
                self._show("Explain", [f"job {self._selected}: asking the store"])
                self._act(self._explain(self._selected))
            case "c" | "C" if self._selected is not None:
                self._confirming = self._selected
                question = f"Cancel job {self._selected}?"
                self._overlay = Overlay("Cancel", [question], "y yes, any other key no")

    def _leave_overlay(self, key: str) -> None:
        confirming, self._confirming = self._confirming, None
        self._overlay = None
        if confirming is not None and key in ("y", "Y"):
            self._show("Cancel", [f"job {confirming}: cancelling"])
            self._act(self._cancel(confirming))

    def _choose_part(self, step: int) -> None:
        self._part = (self._part + step) % len(PARTS)
        if self._selected not in self._listed():
            self._selected = None

    def _listed(self) -> list[str]:
        """The jobs that can be selected, in the order of the screen."""
        if self._view is None:
            return []
        part, jobs = PARTS[self._part], []
        if part in ("all", "running"):
            jobs += [job.id for job in listed_running(self._view)]
        if part in ("all", "failed"):
            jobs += [job.id for job in self._view.seen.failed]
        return jobs

    def _select(self, step: int) -> None:
        jobs = self._listed()
        if not jobs:
            self._selected = None
        elif self._selected not in jobs:
            self._selected = jobs[0 if step > 0 else -1]
        else:
            index = jobs.index(self._selected) + step
            self._selected = jobs[min(max(index, 0), len(jobs) - 1)]

    # --- what keys do to the selected job ------------------------------------------------------

    def _act(self, action: Coroutine[Any, Any, None]) -> None:
        if self._acting is not None:
            self._acting.cancel()
        self._acting = self._group.create_task(action)

    async def _explain(self, id: str) -> None:
        try:
            found = await self._watcher.explain(id)
        except PenstockError as error:
            self._show("Explain", [str(error)])
            return
        lines = [f"job {id}: {found.verdict}", ""]
        for number, reason in enumerate(found.reasons, 1):
            lines.append(f"{number}. {reason.text}")
            if reason.next_step is not None:
                lines.append(f"   next: {reason.next_step}")
        self._show("Explain", lines)

    async def _cancel(self, id: str) -> None:
        try:
            answer = await self._watcher.cancel(id)
        except PenstockError as error:
            self._show("Cancel", [str(error)])
            return
        match answer.state:
            case None:
                told = "it is not in the store any more"
            case State.RUNNING:
                told = "it was asked to stop"
            case State.CANCELLED:
                told = "cancelled"
            case state:
                told = f"not cancelled: it is {state}"
        self._show("Cancel", [f"job {id}: {told}"])

    def _show(self, title: str, lines: Sequence[str]) -> None:
        self._overlay = Overlay(title, lines, "press a key to go back")
        self._news.set()

    def _end(self, why: str) -> None:
        self._ended = why
        self._news.set()
