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
        self._pipe = place / "echo"
        os.mkfifo(self._pipe)
        self._worker = subprocess.Popen([sys.executable, "-m", module, str(place)])
        self._reader = open(self._pipe)

    @staticmethod
    def answer(place: Path) -> None:
        """Called by the job."""
        now = time.perf_counter()
        with open(place / "echo", "w") as pipe:
            pipe.write(f"{now}\n")

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
