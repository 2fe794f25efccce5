"""The processes of a run: started, killed, stopped for a while, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from chaos.plan import Blow
from servers.postgres import Postgres

TESTS = Path(__file__).parent.parent
SUPERVISORS = 2
PRODUCERS = 2
PATIENCE = 30.0
"""Real seconds that a process has to end after SIGTERM."""


WRONG_USE = 2
"""The exit code of a command that was called in a wrong way."""


class ChaosError(Exception):
    """The run itself does not work; nothing can be said of what it was to try."""


class Processes:
    """All processes of one run, except its server, which is given."""

    def __init__(self, place: Path, url: str, lease: float, seed: int, torn: str | None) -> None:
        self._place = place
        self._seed = seed
        self._lease = lease
        self.server: Postgres | None = None
        self.troubles: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._ending: list[subprocess.Popen[bytes]] = []
        self._stopped: list[tuple[float, list[int]]] = []
        self._environment = {
            **os.environ,
            "CHAOS_PLACE": str(place),
            "CHAOS_URL": url,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            **({"CHAOS_TORN": torn} if torn else {}),
        }
        self.supervisors = [self._supervisor() for _ in range(SUPERVISORS)]
        self.producers = [self._producer() for _ in range(PRODUCERS)]

    # --- starting ------------------------------------------------------------------------------

    def _supervisor(self) -> subprocess.Popen[bytes]:
        lease = f"{self._lease:g}s"
        return self._start(
            *("penstock", "worker", "chaos.application:app", "--processes", "2"),
            *("--concurrency", "10", "--threads", "4", "--children", "2", "--lease", lease),
            *("--drain", "2s", "--grace", "1s", "--hang-limit", "10s", "--log-level", "warning"),
        )

    def _producer(self) -> subprocess.Popen[bytes]:
        return self._start("chaos.producer", f"{self._seed}-{len(self._started)}")

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self._place / f"{len(self._started):03}-{command[0]}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self._place,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def keep_up(self) -> None:
        """Do what a service manager does: start again what has ended, and continue the stopped."""
        now = time.monotonic()
        due = [pids for at, pids in self._stopped if at <= now]
        self._stopped = [each for each in self._stopped if each[0] > now]
        for pids in due:
            send(signal.SIGCONT, pids)
        for index, each in enumerate(self.supervisors):
            if (code := each.poll()) is not None:
                if code == WRONG_USE:
                    raise ChaosError(f"the workers do not start; see the logs in {self._place}")
                self.supervisors[index] = self._supervisor()
        for index, each in enumerate(self.producers):
            if (code := each.poll()) is not None:
                if code > 0:
                    self.troubles.append(f"a producer failed with exit code {code}")
                self.producers[index] = self._producer()

    # --- blows ---------------------------------------------------------------------------------

    def strike(self, blow: Blow) -> bool:
        """Do it; False: there was no such process."""
        if blow.victim == "server":
            self._strike_server(blow)
            return True
        victims = self._victims(blow.victim)
        if not victims:
            return False
        victim = victims[int(blow.pick * len(victims))]
        match blow.act:
            case "kill":
                send(signal.SIGKILL, [victim])
            case "stop":
                # A supervisor beats for its workers: only with it do they lose their leases.
                whole = [victim, *descendants(victim)] if blow.victim == "supervisor" else [victim]
                self._stop(whole, blow.length)
            case "restart":
                self._restart(blow, victim)
        return True

    def _victims(self, kind: str) -> list[int]:
        match kind:
            case "producer":
                return [each.pid for each in self.producers]
            case "supervisor":
                return [each.pid for each in self.supervisors]
        workers = [pid for each in self.supervisors for pid in children(each.pid)]
        if kind == "worker":
            return sorted(workers)
        return sorted(pid for worker in workers for pid in children(worker))

    def _stop(self, pids: list[int], length: float) -> None:
        send(signal.SIGSTOP, pids)
        self._stopped.append((time.monotonic() + length, pids))

    def _restart(self, blow: Blow, victim: int) -> None:
        match blow.victim:
            case "supervisor":
                # Its successor starts at once: for a while both of them run.
                index = [each.pid for each in self.supervisors].index(victim)
                self._ending.append(self.supervisors[index])
                self.supervisors[index] = self._supervisor()
                send(signal.SIGTERM, [victim])
            case _:
                send(signal.SIGTERM, [victim])

    def _strike_server(self, blow: Blow) -> None:
        server = self.server
        assert server is not None
        assert server.pid is not None
        match blow.act:
            case "kill":
                server.kill()
                server.start()
            case "stop":
                whole = [server.pid, *children(server.pid)]
                send(signal.SIGSTOP, whole)
                time.sleep(blow.length)
                send(signal.SIGCONT, whole)
            case "restart":
                server.restart()

    # --- the end -------------------------------------------------------------------------------

    def calm(self) -> None:
        """Continue what is stopped, and let the producers end."""
        self._stopped = [(0.0, pids) for _, pids in self._stopped]
        self.keep_up()
        producers, self.producers = self.producers, []
        self._end(producers, "a producer")
        self.troubles += [
            f"a producer failed with exit code {each.returncode}"
            for each in producers
            if (each.returncode or 0) > 0
        ]

    def end(self) -> None:
        """Let the workers end, so that every outcome they have is delivered or refused."""
        workers, self.supervisors = self.supervisors, []
        self._end([*workers, *self._ending], "a supervisor")

    def _end(self, processes: list[subprocess.Popen[bytes]], what: str) -> None:
        for each in processes:
            if each.poll() is None:
                each.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        for each in processes:
            try:
                each.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.troubles.append(f"{what} did not end after SIGTERM")

    def close(self) -> None:
        """Leave nothing behind."""
        for each in self._started:
            if each.poll() is None:
                send(signal.SIGKILL, [*descendants(each.pid), each.pid])
            each.wait()


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in path.read_text().split()]
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    found = children(pid)
    return [*found, *(each for child in found for each in descendants(child))]
