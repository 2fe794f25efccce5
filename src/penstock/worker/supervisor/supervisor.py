"""The supervisor: keeps a number of worker processes alive, and answers for them.

It never imports the user's code, so nothing that a handler does can stop it: it beats for its
processes (``store``), follows up those that end (``post``), replaces those that cannot
go on well, and kills those that give no sign of life.

Signals

| signal               | first                    | again                  | for the third time    |
|----------------------|--------------------------|------------------------|-----------------------|
| SIGTERM, SIGINT      | drain                    | give back what runs    | kill                  |
| SIGHUP               | replace all, one by one  |                        |                       |
| ... without terminal | drain                    | as above               | as above              |
| SIGUSR1              | say the status           |                        |                       |

If this dies, or hangs, here

| here                     | then                                                                 |
|--------------------------|----------------------------------------------------------------------|
| a process, dead          | its jobs run again at once, and another process follows              |
| a process, stopped       | its lease is kept for ``hang_limit``, then it is killed, then as dead |
| the supervisor, dead     | its processes see their sockets close, drain and end by themselves   |
| the supervisor, stopped  | its processes go on and beat for themselves                          |
| the store                | everybody waits for it; nobody is called dead                        |
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.errors import BadOption
from penstock.worker.supervisor.host import Systemd, changes, reap_adopted
from penstock.worker.supervisor.leases import StaffStore
from penstock.worker.supervisor.log import StaffJournal
from penstock.worker.supervisor.replica import LINGER, Post
from penstock.worker.supervisor.replica_messages import Loaded, Orders
from penstock.worker.supervisor.replica_process import Member, spawn
from penstock.worker.supervisor.status import Tally

TICK: Final = 1.0
"""Seconds between two looks at everybody."""
STATUS_EVERY: Final = 30.0
"""Seconds between two status lines, if something has happened."""
LATE: Final = 30.0
"""Seconds after which an application that is still being loaded is worth a word."""
SETTLE: Final = 5.0
"""Seconds, at least, that the last things in the store may take."""

HANG_LIMIT: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaffSettings:
    """What is decided before a supervisor starts. Durations are seconds."""

    processes: int = 1
    hang_limit: float = HANG_LIMIT
    """How long a process may give no sign of life before it is killed."""
    reloads_from: str | None = None
    """The directory whose changes replace all processes; None: none does."""

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise BadOption("processes", self.processes, "give a whole number from 1")
        if self.hang_limit < 10 * TICK:
            why = f"give at least {10 * TICK:g} s: a sign of life comes every second"
            raise BadOption("hang_limit", self.hang_limit, why)


class Supervisor:
    """Runs worker processes by ``orders`` until told to stop; ``connect`` makes a handle by URL."""

    def __init__(
        self,
        connect: Callable[[str], Engine],
        orders: Orders,
        settings: StaffSettings,
        *,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
        start: Callable[[Orders, Callable[[], None], float], Member] = spawn,
    ) -> None:
        self.has_served = False
        self._orders = orders
        self._settings = settings
        self._clock = clock
        self._start = start
        self._journal = StaffJournal()
        self._systemd = Systemd(environ)
        self._tally = Tally()
        self._store = StaffStore(connect, self._living, clock, self._journal)
        self._posts = [
            Post(self, clock, self._journal, waits_for_change=settings.reloads_from is not None)
            for _ in range(settings.processes)
        ]
        self._news = asyncio.Event()
        self._wants_reload = asyncio.Event()
        self._is_ready = False
        self._loaded: Loaded | None = None
        self._stops = 0
        self._code = 0
        self._drain, self._grace = 0.0, SETTLE
        self._has_terminal = False

    async def run(self) -> int:
        """Work until told to stop, or until it cannot go on; return the exit code.

        0: it ended as it was told. 1: it gave up, or had to kill. 2: it was called in a wrong way.
        """
        self._loop = asyncio.get_running_loop()
        try:
            with self._signals():
                async with asyncio.TaskGroup() as group:
                    await self._staffed(group)
        finally:
            for post in self._posts:
                post.kill()
            self._systemd.close()
        if self._is_ready:
            self._journal.over(self._tally.counts(()))
        return self._code

    async def _staffed(self, group: asyncio.TaskGroup) -> None:
        """Let everything live in ``group`` as long as there are processes."""
        lives = [self._store.run(), self._watch(), self._tell_status(), self._reload_when_wanted()]
        if (every := self._systemd.watchdog_every) is not None:
            lives.append(self._feed_watchdog(every))
        if self._settings.reloads_from is not None:
            lives.append(self._reload_when_changed(self._settings.reloads_from))
        helpers = [group.create_task(life) for life in lives]
        try:
            await asyncio.gather(*(post.keep() for post in self._posts))
            self._see_ready()
            self._systemd.tell(STOPPING=1)
            patience = SETTLE if self._stops > 2 else max(SETTLE, self._grace)
            if not await self._store.settled(patience):
                self._code = self._code or 1
        finally:
            for helper in helpers:
                helper.cancel()

    # --- what the posts need -------------------------------------------------------------------

    def hire(self, heard: Callable[[], None]) -> Member:
        """Start a process and listen to it."""

        def news() -> None:
            heard()
            self._news.set()

        member = self._start(self._orders, news, self._clock.monotonic())
        self._loop.add_reader(member.fileno(), self._hear, member, member.fileno())
        self._journal.started(member.pid)
        return member

    def bury(self, member: Member) -> None:
        """Keep its counts, see to its jobs."""
        # A number that is closed while the loop listens there would be deaf for whoever is next.
        self._loop.remove_reader(member.fileno())
        member.close()
        self._learn(member)
        self._tally.bury(member)
        self._store.bury(member)
        if self._stops and member.code and member.joined_at is not None:
            self._code = self._code or 1

    def give_up(self, why: str, *, is_usage: bool) -> None:
        """Stop everything: this cannot become good."""
        self._journal.gave_up(why)
        self._code = 2 if is_usage else 1
        self._systemd.tell(STATUS=f"gave up: {why.splitlines()[0]}")
        if not self._stops:
            self._stop_first("gave up")

    def _hear(self, member: Member, number: int) -> None:
        if not member.hear(self._clock.monotonic()):
            self._loop.remove_reader(number)

    # --- looking after everybody ---------------------------------------------------------------

    @property
    def _members(self) -> list[Member]:
        return [member for post in self._posts for member in post.members]

    def _living(self) -> list[str]:
        return [member.worker for member in self._members if member.worker]

    async def _watch(self) -> None:
        """Look at everybody whenever something was said, and each second."""
        ticked_at = self._clock.monotonic()
        while True:
            self._news.clear()
            for member in self._members:
                self._learn(member)
            self._see_ready()
            now = self._clock.monotonic()
            if now - ticked_at >= TICK:
                # What this process itself has slept through is nobody's silence.
                self._tick(now, min(now - ticked_at, 2 * TICK))
                ticked_at = now
            await self._clock.wait(self._news, max(0.0, ticked_at + TICK - now))

    def _learn(self, member: Member) -> None:
        if member.loaded is not None:
            self._loaded = member.loaded
            self._drain, self._grace = member.loaded.drain, member.loaded.grace
            self._store.locate(member.loaded)
        if member.joined_at is not None:
            self.has_served = True
        if member.has_news:
            member.has_news = False
            member.silence = 0.0

    def _tick(self, now: float, passed: float) -> None:
        for post in self._posts:
            for member in post.members:
                self._judge(member, now, passed)
                if member.is_wedged and member.is_told and member.doom_at is None:
                    member.drain(self._drain, now + self._drain + self._grace + LINGER)
            post.wake()  # a death whose signal was missed is seen now
        if os.getpid() == 1:
            reap_adopted({member.pid for member in self._members})

    def _judge(self, member: Member, now: float, passed: float) -> None:
        if member.joined_at is not None:
            member.silence += passed
        elif member.loaded is None and not member.is_late and now - member.started_at > LATE:
            member.is_late = True
            self._journal.late(member.pid, now - member.started_at)
        if member.silence > self._settings.hang_limit:
            self._journal.hung(member.pid, member.worker, member.silence)
            member.kill()
        elif member.doom_at is not None and now >= member.doom_at:
            self._journal.overdue(member.pid)
            member.kill()

    def _see_ready(self) -> None:
        loaded = self._loaded
        if self._is_ready or self._stops or loaded is None:
            return
        if not all(post.is_filled or post.is_finished for post in self._posts):
            return
        self._is_ready = True
        self._journal.ready(len(self._posts), loaded.queues, loaded.shown)
        self._systemd.tell(READY=1, STATUS="ready")

    async def _tell_status(self) -> None:
        """Say how it goes, at most every so often, if anything has happened since."""
        before = self._tally.counts(())
        while True:
            await self._clock.sleep(STATUS_EVERY)
            if (counts := self._tally.counts(self._members)) != before:
                before = counts
                self._say_status()

    def _say_status(self) -> None:
        line = self._tally.line(self._members, self._clock.monotonic())
        self._journal.status(line)
        self._systemd.tell(STATUS=line)

    async def _feed_watchdog(self, every: float) -> None:
        while True:
            self._systemd.tell(WATCHDOG=1)
            await self._clock.sleep(every)

    # --- new code ------------------------------------------------------------------------------

    async def _reload_when_wanted(self) -> None:
        """Replace all processes, one after the other, each time SIGHUP came."""
        while True:
            await self._wants_reload.wait()
            self._wants_reload.clear()
            usec = round(self._clock.monotonic() * 1_000_000)
            self._systemd.tell(RELOADING=1, MONOTONIC_USEC=usec)
            self._journal.reloading("SIGHUP")
            for post in self._posts:
                if not await post.replace("SIGHUP"):
                    break  # said already; what does not start once does not start twice
            self._systemd.tell(READY=1)

    async def _reload_when_changed(self, directory: str) -> None:
        """Replace all processes at once, each time the code has changed."""
        try:
            async for files in changes(directory):
                self._journal.changed(files)
                for post in self._posts:
                    post.replace("the code has changed", drain=0.0, grace=self._grace)
        except (OSError, RuntimeError) as error:
            self._journal.unwatched(error)

    # --- signals -------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Under nohup a lost terminal is no reason to stop.
        self._has_terminal = (
            signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()
        )
        calls: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: lambda: self.stop("SIGTERM"),
            signal.SIGINT: lambda: self.stop("Ctrl-C"),
            signal.SIGHUP: self._hang_up,
            signal.SIGUSR1: self._say_status,
            signal.SIGCHLD: self._wake_all,
        }
        before = {number: signal.getsignal(number) for number in calls}
        for number, call in calls.items():
            self._loop.add_signal_handler(number, call)
        try:
            yield
        finally:
            for number in calls:
                self._loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def _wake_all(self) -> None:
        for post in self._posts:
            post.wake()

    def _hang_up(self) -> None:
        if self._has_terminal and not _has_terminal():
            self.stop("the terminal is gone")
        elif not self._stops:
            self._wants_reload.set()
            for post in self._posts:
                post.forget_wish()  # whatever keeps an heir from joining, there is new code now

    def stop(self, why: str) -> None:
        """Drain; told again, give back what runs; told for the third time, kill."""
        match self._stops:
            case 0:
                self._stop_first(why)
            case 1:
                self._stops = 2
                self._journal.forcing(why)
                for post in self._posts:
                    post.stop(0.0, self._grace)
            case _:
                self._stops = 3
                self._journal.killing(why)
                self._code = self._code or 1
                for post in self._posts:
                    post.kill()

    def _stop_first(self, why: str) -> None:
        self._stops = 1
        self._systemd.tell(STOPPING=1, STATUS=f"stopping: {why}")
        if self._living():
            self._journal.draining(why, self._drain)
        for post in self._posts:
            post.stop(self._drain, self._grace)


def _has_terminal() -> bool:
    """This process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
