"""The supervisor: keeps a number of worker processes running, and their leases alive.

It never imports the user's code, so nothing that a handler does can stop it: it beats for its
processes (``leases``), starts new ones for those that end (``replica``), replaces those that ask
for it, and kills those that give no sign of life.

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
| the store                | all processes wait for it; none is called dead                       |
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
from penstock.worker.supervisor import log
from penstock.worker.supervisor.host import Systemd, changes, has_terminal, reap_orphans
from penstock.worker.supervisor.leases import ReplicaLeases
from penstock.worker.supervisor.replica import LINGER, Replica
from penstock.worker.supervisor.replica_messages import Loaded, ReplicaSpec
from penstock.worker.supervisor.replica_process import ReplicaProcess, spawn
from penstock.worker.supervisor.status import StatusTotals

TICK: Final = 1.0
"""Seconds between two looks at all processes."""
STATUS_EVERY: Final = 30.0
"""Seconds between two status lines, if something has happened."""
SLOW_TO_LOAD: Final = 30.0
"""Seconds after which an application that is still being loaded is worth a log line."""
SETTLE: Final = 5.0
"""Seconds, at least, that the last clean-up in the store may take."""

HANG_LIMIT: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """How a supervisor runs its processes. Durations are seconds."""

    processes: int = 1
    hang_limit: float = HANG_LIMIT
    """How long a process may give no sign of life before it is killed."""
    reloads_from: str | None = None
    """The directory whose changes replace all processes; None: no reload."""

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise BadOption("processes", self.processes, "give a whole number from 1")
        if self.hang_limit < 10 * TICK:
            why = f"give at least {10 * TICK:g} s: a sign of life comes every second"
            raise BadOption("hang_limit", self.hang_limit, why)


class Supervisor:
    """Runs worker processes by ``spec`` until told to stop; ``connect`` makes a handle by URL."""

    def __init__(
        self,
        connect: Callable[[str], Engine],
        spec: ReplicaSpec,
        settings: SupervisorSettings,
        *,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
        start: Callable[[ReplicaSpec, Callable[[], None], float], ReplicaProcess] = spawn,
    ) -> None:
        self.has_served = False
        self._spec = spec
        self._settings = settings
        self._clock = clock
        self._start = start
        self._systemd = Systemd(environ)
        self._totals = StatusTotals()
        self._leases = ReplicaLeases(connect, self._living, clock)
        self._replicas = [
            Replica(self, clock, waits_for_change=settings.reloads_from is not None)
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
                    await self._run_all(group)
        finally:
            for replica in self._replicas:
                replica.kill()
            self._systemd.close()
        if self._is_ready:
            log.ended(self._totals.total())
        return self._code

    async def _run_all(self, group: asyncio.TaskGroup) -> None:
        """Run the replicas to their end, and everything else meanwhile."""
        loops = [
            self._leases.run(),
            self._watch(),
            self._log_status_changes(),
            self._reload_when_wanted(),
        ]
        if (every := self._systemd.watchdog_every) is not None:
            loops.append(self._feed_watchdog(every))
        if self._settings.reloads_from is not None:
            loops.append(self._reload_when_changed(self._settings.reloads_from))
        helpers = [group.create_task(loop) for loop in loops]
        try:
            await asyncio.gather(*(replica.run() for replica in self._replicas))
            self._note_ready()
            self._systemd.tell(STOPPING=1)
            timeout = SETTLE if self._stops > 2 else max(SETTLE, self._grace)
            if not await self._leases.cleaned_up(timeout):
                self._code = self._code or 1
        finally:
            for helper in helpers:
                helper.cancel()

    # --- what the replicas need ----------------------------------------------------------------

    def start_process(self, on_message: Callable[[], None]) -> ReplicaProcess:
        """Start a process and read its messages."""

        def news() -> None:
            on_message()
            self._news.set()

        process = self._start(self._spec, news, self._clock.monotonic())
        self._loop.add_reader(process.fileno(), self._receive, process, process.fileno())
        log.process_started(process.pid)
        return process

    def clean_up(self, process: ReplicaProcess) -> None:
        """Keep the counts of a dead process, and see to its jobs."""
        # The next socket gets the same number: the loop would not notice that it is another one.
        self._loop.remove_reader(process.fileno())
        process.close()
        self._learn(process)
        self._totals.add_dead(process)
        self._leases.clean_up(process)
        if self._stops and process.code and process.joined_at is not None:
            self._code = self._code or 1

    def give_up(self, why: str, *, is_usage: bool) -> None:
        """Stop everything: starting again would not help."""
        log.gave_up(why)
        self._code = 2 if is_usage else 1
        self._systemd.tell(STATUS=f"gave up: {why.splitlines()[0]}")
        if not self._stops:
            self._stop_first("gave up")

    def _receive(self, process: ReplicaProcess, number: int) -> None:
        if not process.receive(self._clock.monotonic()):
            self._loop.remove_reader(number)

    # --- watching the processes ----------------------------------------------------------------

    @property
    def _processes(self) -> list[ReplicaProcess]:
        return [process for replica in self._replicas for process in replica.processes]

    def _living(self) -> list[str]:
        return [process.worker for process in self._processes if process.worker]

    async def _watch(self) -> None:
        """Look at all processes whenever a message came, and each second."""
        ticked_at = self._clock.monotonic()
        while True:
            self._news.clear()
            for process in self._processes:
                self._learn(process)
            self._note_ready()
            now = self._clock.monotonic()
            if now - ticked_at >= TICK:
                # While the supervisor itself was stopped, no process was silent.
                self._tick(now, min(now - ticked_at, 2 * TICK))
                ticked_at = now
            await self._clock.wait(self._news, max(0.0, ticked_at + TICK - now))

    def _learn(self, process: ReplicaProcess) -> None:
        if process.loaded is not None:
            if self._loaded is None:
                for warning in process.loaded.warnings:
                    log.two_stores(warning)
            self._loaded = process.loaded
            self._drain, self._grace = process.loaded.drain, process.loaded.grace
            self._leases.locate(process.loaded)
        if process.joined_at is not None:
            self.has_served = True
        if process.has_news:
            process.has_news = False
            process.silence = 0.0

    def _tick(self, now: float, passed: float) -> None:
        for replica in self._replicas:
            for process in replica.processes:
                self._check(process, now, passed)
                if process.is_wedged and process.is_stopping and process.kill_at is None:
                    process.drain(self._drain, now + self._drain + self._grace + LINGER)
            replica.wake()  # a death whose signal was missed is seen now
        if os.getpid() == 1:
            reap_orphans({process.pid for process in self._processes})

    def _check(self, process: ReplicaProcess, now: float, passed: float) -> None:
        if process.joined_at is not None:
            process.silence += passed
        elif process.loaded is None and not process.is_slow_logged:
            loading = now - process.started_at
            if loading > SLOW_TO_LOAD:
                process.is_slow_logged = True
                log.slow_to_load(process.pid, loading)
        if process.silence > self._settings.hang_limit:
            log.hung(process.pid, process.worker, process.silence)
            process.kill()
        elif process.kill_at is not None and now >= process.kill_at:
            log.overdue(process.pid)
            process.kill()

    def _note_ready(self) -> None:
        loaded = self._loaded
        if self._is_ready or self._stops or loaded is None:
            return
        if not all(replica.has_joined or replica.is_finished for replica in self._replicas):
            return
        self._is_ready = True
        log.ready(len(self._replicas), loaded.tasks, loaded.queues, loaded.shown)
        self._systemd.tell(READY=1, STATUS="ready")

    async def _log_status_changes(self) -> None:
        """Log the status every ``STATUS_EVERY`` seconds, if it has changed."""
        before = self._totals.total()
        while True:
            await self._clock.sleep(STATUS_EVERY)
            if (counts := self._totals.total(self._processes)) != before:
                before = counts
                self._log_status()

    def _log_status(self) -> None:
        counts = self._totals.counts(self._processes, self._clock.monotonic())
        log.status(counts)
        told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        self._systemd.tell(STATUS=told)

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
            log.reloading("SIGHUP")
            for replica in self._replicas:
                if not await replica.replace("SIGHUP"):
                    break  # it is logged; the code that does not start once does not start twice
            self._systemd.tell(READY=1)

    async def _reload_when_changed(self, directory: str) -> None:
        """Replace all processes at once, each time the code has changed."""
        try:
            async for files in changes(directory):
                log.code_changed(files)
                for replica in self._replicas:
                    replica.replace("the code has changed", drain=0.0, grace=self._grace)
        except (OSError, RuntimeError) as error:
            log.code_not_watched(error)

    # --- signals -------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Under nohup a lost terminal is no reason to stop.
        self._has_terminal = (
            signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()
        )
        calls: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: lambda: self.stop("SIGTERM"),
            signal.SIGINT: lambda: self.stop("Ctrl-C"),
            signal.SIGHUP: self._hang_up,
            signal.SIGUSR1: self._log_status,
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
        for replica in self._replicas:
            replica.wake()

    def _hang_up(self) -> None:
        if self._has_terminal and not has_terminal():
            self.stop("the terminal is gone")
        elif not self._stops:
            self._wants_reload.set()
            for replica in self._replicas:
                replica.stop_waiting()  # the successor it waits for has old code by now

    def stop(self, why: str) -> None:
        """Drain; told again, give back what runs; told for the third time, kill."""
        match self._stops:
            case 0:
                self._stop_first(why)
            case 1:
                self._stops = 2
                log.forcing(why)
                for replica in self._replicas:
                    replica.stop(0.0, self._grace)
            case _:
                self._stops = 3
                log.killing(why)
                self._code = self._code or 1
                for replica in self._replicas:
                    replica.kill()

    def _stop_first(self, why: str) -> None:
        self._stops = 1
        self._systemd.tell(STOPPING=1, STATUS=f"stopping: {why}")
        if self._living():
            log.draining(why, self._drain)
        for replica in self._replicas:
            replica.stop(self._drain, self._grace)
