"""A terminal that is ours for a while: its other page, its keys, its size.

Whatever ends the block gives the terminal back as it was: the page that was there before, the
cursor, the echo of keys. Ctrl-Z does so too, for as long as the process is stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from rich.console import Console, RenderableType

ENTER: Final = "\x1b[?1049h\x1b[?25l"
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
# What comes between the two is shown at once, by terminals that know of it.
_BEGIN: Final = "\x1b[?2026h\x1b[H"
_END: Final = "\x1b[J\x1b[?2026l"
SMALLEST: Final = (20, 4)
_ARROWS: Final = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}
_NAMES: Final = {"\t": "tab", "\x1b[Z": "left", "\x1b": "escape", **_ARROWS}


def can_show(stream: TextIO) -> bool:
    """The stream leads to a terminal that can do more than print lines."""
    return (
        sys.platform != "win32"
        and stream.isatty()
        and os.environ.get("TERM", "") not in ("", "dumb")
    )


class Screen:
    """The terminal behind ``out``; its keys come from ``keys`` if that is a terminal as well."""

    def __init__(self, out: TextIO, keys: TextIO | None = None) -> None:
        self.has_keys = keys is not None and keys.isatty()
        self._out = out
        self._keys = keys
        self._console = Console(file=out, force_terminal=True, legacy_windows=False)
        self._before: list[Any] | None = None
        self._is_taken = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        try:
            width, height = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            width, height = 0, 0
        if width <= 0 or height <= 0:
            width, height = 80, 24  # a terminal that does not know
        return max(width, SMALLEST[0]), max(height, SMALLEST[1])

    @property
    def is_plain(self) -> bool:
        """It has only the letters of ASCII."""
        return not self._console.encoding.lower().startswith("utf")

    def show(self, frame: RenderableType) -> None:
        """Draw a frame over the one before; what is too long for the terminal is cut off."""
        width, height = self.size
        self._console.size = (width, height)
        with self._console.capture() as drawn:
            self._console.print(frame, crop=True, overflow="ellipsis", no_wrap=True)
        lines = drawn.get().rstrip("\n").split("\n")[:height]
        # A line that fills the terminal leaves the cursor on its last letter: erasing before the
        # line, not behind it, spares that one.
        self._write(_BEGIN + "\r\n".join(f"\x1b[2K{line}" for line in lines) + _END)

    @contextmanager
    def taken(
        self, loop: asyncio.AbstractEventLoop, heard: Callable[[str], None]
    ) -> Iterator[None]:
        """Have the terminal while the block runs; ``heard`` is called with the name of each key,
        and with "resize".
        """
        number = self._keys.fileno() if self.has_keys and self._keys is not None else -1
        try:
            self._take()
            if number >= 0:
                loop.add_reader(number, self._read, number, heard)
            loop.add_signal_handler(signal.SIGWINCH, heard, "resize")
            loop.add_signal_handler(signal.SIGTSTP, self._suspend, heard)
            yield
        finally:
            if number >= 0:
                loop.remove_reader(number)
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGTSTP)
            self._give_back()

    def _read(self, number: int, heard: Callable[[str], None]) -> None:
        try:
            pressed = os.read(number, 64).decode(errors="replace")
        except OSError:
            pressed = ""
        if not pressed:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(number)
            heard("gone")
        elif pressed in _NAMES:
            heard(_NAMES[pressed])
        else:
            for letter in pressed:
                heard(_NAMES.get(letter, letter))

    def _suspend(self, heard: Callable[[str], None]) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()  # after SIGCONT
        heard("resize")

    def _take(self) -> None:
        import termios

        self._before = termios.tcgetattr(self._out)
        modes = termios.tcgetattr(self._out)
        # Else a second Ctrl-C would throw away what is on its way to the terminal, such as the word
        # that gives it back.
        modes[3] |= termios.NOFLSH
        if self.has_keys:
            modes[3] &= ~(termios.ICANON | termios.ECHO)
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        self._is_taken = True
        termios.tcsetattr(self._out, termios.TCSADRAIN, modes)
        self._write(ENTER)

    def _give_back(self) -> None:
        if not self._is_taken:
            return
        self._is_taken = False
        try:
            self._write(LEAVE)
        except OSError:
            pass  # the terminal is gone
        if self._before is not None:
            import termios

            try:
                termios.tcsetattr(self._out, termios.TCSADRAIN, self._before)
            except (OSError, termios.error):
                pass
            self._before = None

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def standard() -> Screen:
    """The terminal that this process was started in."""
    return Screen(sys.stdout, sys.stdin)
