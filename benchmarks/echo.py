"""A worker in another process that tells by a pipe when a job started there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


class Echo:
    """The other process. ``perf_counter`` is one clock for all processes of a machine."""

    def __init__(self, place: Path, module: str) -> None:
        read, write = os.pipe()
        self._worker = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import serve; serve({str(place)!r})"],
            pass_fds=[write],
            env={**os.environ, "ECHO": str(write)},
        )
        os.close(write)
        self._reader = os.fdopen(read)

    @staticmethod
    def answer() -> None:
        """Called by the job."""
        os.write(int(os.environ["ECHO"]), f"{time.perf_counter()}\n".encode())

    def wait(self) -> float:
        """Return the instant at which a job started."""
        line = self._reader.readline()
        # Let the worker fall asleep again: idle latency is what is asked.
        time.sleep(0.02)
        return float(line)

    def close(self) -> None:
        self._worker.terminate()
        self._worker.wait()
        self._reader.close()
