"""A worker in another process, and the pipe by which its jobs report that they started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contenders.contender import Contender

_PIPE = "BENCHMARK_PIPE"


def report_start() -> None:
    """Called by a job: report when it started. All processes of a machine have one clock."""
    os.write(int(os.environ[_PIPE]), f"{time.time()}\n".encode())


class WorkerProcess:
    """A process that runs the jobs of a contender."""

    def __init__(self, contender: Contender) -> None:
        read, write = os.pipe()
        about = (contender.engine, contender.name, str(contender.location), contender.kind)
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker_main", *about],
            pass_fds=[write],
            env={**os.environ, _PIPE: str(write)},
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self.pid = self._worker.pid

    def started_at(self) -> float:
        """Wait for a job to start, and return when it did."""
        line = self._answers.readline()
        assert line, "the worker has ended"
        return float(line)

    def count(self) -> int:
        """Wait for jobs to start, and return how many did since; 0: the worker has ended.

        Do not mix with ``started_at`` while jobs run.
        """
        return os.read(self._answers.fileno(), 1 << 16).count(b"\n")

    def end(self) -> None:
        """Let it stop, and wait until it has."""
        self._worker.terminate()
        self._worker.wait()

    def close(self) -> None:
        """End it."""
        self.end()
        self._answers.close()

    # --- what it uses, as Linux tells ----------------------------------------------------------

    def memory(self) -> float:
        """MiB of memory that are its own or shared, now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def cpu(self) -> float:
        """Seconds that it has cpu_seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_worker(contender: Contender) -> Iterator[WorkerProcess]:
    """A worker that has run its first job and fallen asleep."""
    other = WorkerProcess(contender)
    try:
        contender.enqueue_stamp()
        other.started_at()
        rest()
        yield other
    finally:
        other.close()


def rest() -> None:
    """Let a worker fall asleep."""
    time.sleep(0.02)
