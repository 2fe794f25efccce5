"""Real worker processes, which tests may kill, stop and let go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

import penstock
from penstock import Penstock
from penstock.errors import EngineBusy
from processes.store_lock import shut

TESTS = Path(__file__).parent.parent
SOURCES = Path(penstock.__file__).parent.parent
PATIENCE = 60.0
"""Real seconds after which something counts as never coming; nothing here waits for it to pass."""


class Supervised:
    """A supervisor with its processes, in a session of its own."""

    def __init__(
        self,
        place: Path,
        number: int,
        module: str,
        options: tuple[str, ...],
        environment: dict[str, str],
    ) -> None:
        self.log = place / f"supervisor-{number}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "worker", module, *options],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """What it has said so far, with its processes."""
        return self.log.read_text()

    def children(self) -> list[int]:
        """Its processes, as the system knows them."""
        try:
            found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in found.split()]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end\n{self.text()}") from None

    def close(self) -> None:
        """End it, whatever it does. Its processes then end by themselves."""
        children = self.children()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in children:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


class Shop:
    """A place with a store, the workers that serve it, and the traces they leave."""

    def __init__(self, place: Path, url: str) -> None:
        self.place = place
        self.url = url
        self.environment = {
            **os.environ,
            "SHOP_PLACE": str(place),
            "SHOP_URL": url,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{SOURCES}",
        }
        """Of every process that serves it."""
        self.app = Penstock(self.url)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._supervised: list[Supervised] = []

    def worker(
        self, *, concurrency: int = 10, lease: float = 2.0, busy: float = 10, lose: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start a worker process; ``busy`` is how long it waits for a file that others write to."""
        url = f"{self.url}?busy_timeout={busy}" if self.url.startswith("sqlite") else self.url
        log = open(self.place / f"worker-{len(self._workers)}.log", "wb")
        with log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "processes.serve", str(concurrency), str(lease), str(lose)],
                env={**self.environment, "SHOP_URL": url},
                stdout=log,
                stderr=log,
            )
        self._workers.append(worker)
        return worker

    def supervisor(
        self, *options: str, module: str = "processes.shop:app", **environment: str
    ) -> Supervised:
        """Start ``penstock worker`` as a person would."""
        number, whole = len(self._supervised), {**self.environment, **environment}
        supervised = Supervised(self.place, number, module, options, whole)
        self._supervised.append(supervised)
        return supervised

    def pids(self) -> set[int]:
        """The processes that have a lease now."""
        return {int(info.id.split("-")[-2]) for info in self.app.workers()}

    def enqueue(self, task: str, count: int) -> list[str]:
        """Enqueue ``count`` jobs of a task, numbered; return their ids."""
        name = f"processes.shop.{task}"
        return [self.app.enqueue(name, {"number": number}).id for number in range(count)]

    def trace(self, first: str) -> list[list[str]]:
        """The lines of the trace that begin with a word."""
        try:
            lines = (self.place / "trace").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.split() for line in lines if line.split()[0] == first]

    def let_go(self) -> None:
        """Let waiting handlers end."""
        (self.place / "go").touch()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come\n{self.logs()}")
            time.sleep(0.02)

    def until_ended(self, ids: list[str], *, restart: bool = False) -> None:
        """Wait until these jobs are in a final state; ``restart`` as a service manager would."""

        def ended() -> bool:
            if restart and all(worker.poll() is not None for worker in self._workers):
                self.worker(lease=1.0)
            return all(self.app.job(id).status().state.is_final for id in ids)

        self.until(ended, "the end")

    def shut(self, timeout: float = 10.0) -> AbstractContextManager[None]:
        """Keep everybody from writing to the store."""
        return shut(self.url, self.app.clock, timeout)

    def freeze(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a process at a moment when it has no lock on the store."""

        def is_frozen() -> bool:
            worker.send_signal(signal.SIGSTOP)
            try:
                with self.shut(1.0):
                    return True
            except EngineBusy:
                worker.send_signal(signal.SIGCONT)
                return False

        self.until(is_frozen, "a moment without a lock")

    def logs(self) -> str:
        """What the workers said."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()}" for path in sorted(self.place.glob("*.log"))
        )

    def close(self) -> None:
        """End every worker that is still there."""
        for supervised in self._supervised:
            supervised.close()
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        self.app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db"
    else:
        url = request.getfixturevalue("postgres_url")
    shop = Shop(tmp_path, url)
    yield shop
    shop.close()


any_store = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
"""For tests where it makes no difference which one it is."""
