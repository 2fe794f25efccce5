"""A real terminal with a program in it: what it shows, which keys it hears, how it is left."""

from __future__ import annotations

import os
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pexpect
import pyte

PATIENCE = 60.0
"""Real seconds after which something counts as never coming; nothing here waits for it to pass."""
ENTER = "\x1b[?1049h"
LEAVE = "\x1b[?25h\x1b[?1049l"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
"""Around each frame: a screen is only looked at when it is drawn to its end."""


class Terminal:
    """``penstock`` with some arguments, in a terminal of its own."""

    def __init__(
        self, *arguments: str, columns: int = 100, lines: int = 30, **environment: str
    ) -> None:
        around: Any = {**os.environ, "TERM": "xterm-256color", **environment}
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "penstock", *arguments],
            dimensions=(lines, columns),
            encoding="utf-8",
            codec_errors="replace",
            env=around,
        )
        self.before = self._modes()
        self.raw = ""
        self._unseen = ""
        """A frame of which only a part has come."""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self._screen)

    @property
    def pid(self) -> int:
        return int(self.child.pid)

    @property
    def page(self) -> str:
        """What is on the screen now."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def after(self) -> str:
        """What was printed after the terminal was given back, line by line."""
        return self.raw.rpartition(LEAVE)[2].replace("\r\n", "\n")

    def until(self, wanted: str | Callable[[], object], what: str = "") -> None:
        """Wait until the screen shows a text, or until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not (wanted in self.page if isinstance(wanted, str) else wanted()):
            if time.monotonic() > deadline or not self._read():
                shown = f"{wanted if isinstance(wanted, str) else what!r} did not come"
                raise AssertionError(f"{shown}\n{self.page}\n{self.raw[-2000:]!r}")

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self._screen.reset()
        self.child.setwinsize(lines, columns)

    def ended(self) -> int:
        """Wait for its end; return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not end\n{self.page}")
        self.child.wait()
        assert self.child.signalstatus is None
        return int(self.child.exitstatus or 0)

    def is_given_back(self) -> bool:
        """The page from before is there again, and the keys are as they were."""
        return self.raw.rpartition(ENTER)[2].count(LEAVE) == 1 and self._modes() == self.before

    def hang_up(self) -> None:
        """Close the window; wait for the end of what was in it."""
        self.child.ptyproc.fileobj.close()
        self.child.ptyproc.closed = self.child.closed = True
        os.waitpid(self.pid, 0)
        self.child.ptyproc.terminated = self.child.terminated = True

    def close(self) -> None:
        with suppress(OSError):
            self.child.close(force=True)

    def _modes(self) -> list[Any]:
        return termios.tcgetattr(self.child.child_fd)

    def _read(self) -> bool:
        """Take in what it has written; False: it has ended."""
        try:
            text = self.child.read_nonblocking(65536, timeout=0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += text
        self._unseen += text
        begun = self._unseen.rfind(BEGIN)
        if begun >= 0 and END not in self._unseen[begun:]:
            whole, self._unseen = self._unseen[:begun], self._unseen[begun:]
        else:
            whole, self._unseen = self._unseen, ""
        self._stream.feed(whole)
        return True


def processes_of(url: str) -> list[int]:
    """Every process that was started for a store."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"PENSTOCK_URL={url}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found
