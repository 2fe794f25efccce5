"""What a worker process has done, counted in memory that it shares with its supervisor.

The process writes after each reply of the store, so what kill -9 takes from the counts is at most
what was settled by one exchange. Messages would have to be sent, and read, as often.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import Final

_COUNTS: Final = struct.Struct("=3q")


class ReplicaCounts:
    """Jobs that succeeded, failed for good, and attempts to be retried, as the store has them."""

    def __init__(self, file: int) -> None:
        """``file`` was made by ``shared_file`` in this process or in its parent."""
        self._page = mmap.mmap(file, _COUNTS.size)

    def add(self, succeeded: int, failed: int, retried: int) -> None:
        """Count what one exchange has settled. One thread writes."""
        before = self.read()
        _COUNTS.pack_into(
            self._page, 0, before[0] + succeeded, before[1] + failed, before[2] + retried
        )

    def read(self) -> tuple[int, int, int]:
        """All that was counted: succeeded, failed, retried."""
        succeeded, failed, retried = _COUNTS.unpack_from(self._page)
        return succeeded, failed, retried

    def close(self) -> None:
        """Let the memory go."""
        self._page.close()


def shared_file() -> int:
    """The file descriptor of new counts, all zero, for this process and a child of it.

    On failure: ``OSError``.
    """
    with tempfile.TemporaryFile() as file:
        file.truncate(_COUNTS.size)
        return os.dup(file.fileno())
