"""The command ``penstock``: its entry point, which imports the rest once Ctrl-C is handled."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130


def main() -> NoReturn:
    """Run the command that this process was started for, and exit."""
    # Otherwise the parent, such as nohup, has turned Ctrl-C off.
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, _leave)
    _open_streams()
    from penstock.cli.program import run

    try:
        if is_handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    if is_handled:
        signal.signal(signal.SIGINT, _leave)
    sys.exit(code)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Exit without a traceback: no command has begun, or it has ended."""
    os._exit(INTERRUPTED)


def _open_streams() -> None:
    """Open the standard streams that were closed: a file that gets their numbers, such as the
    socket of a worker process, would be taken for them. No text is refused by their encoding.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):  # JSON is UTF-8 whatever the locale; what is not is kept
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
