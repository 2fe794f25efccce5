"""``penstock demo``: the background jobs of a small shop, live."""

from __future__ import annotations

import signal
from typing import Annotated, Final

import typer

from penstock.cli.prompts import say
from penstock.errors import PenstockError, ProcessFailed

EPILOG: Final = """\
The demo creates a store of its own, an SQLite file in a temporary folder, and keeps it until you
delete it. At the end it suggests commands to try on it.

Exit codes: 0 the demo ended, or you pressed q; 1 something went wrong; 2 wrong usage; 130 Ctrl-C.

Example: penstock demo --stay
"""

INTERRUPTED: Final = 130
TERMINATED: Final = 143


def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep going until q or Ctrl-C.")] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="A new folder for the store. [default: a temporary folder]"
        ),
    ] = None,
) -> None:
    """Show the background jobs of a small shop: two processes, retries, crashes, failed jobs."""
    # Here, because only this command draws: what draws takes a while to import.
    from penstock.demo.folder import make
    from penstock.demo.run import run

    folder = make(keep)
    try:
        stopped_by = run(folder, stays=stay)
    except KeyboardInterrupt:
        stopped_by = "Ctrl-C"
    except (PenstockError, OSError) as error:
        if keep is None and not isinstance(error, ProcessFailed):
            folder.remove()
        raise
    if stopped_by is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is already ending
    if stay or keep is not None:
        say(f"Stopped. The store is kept in {folder.path}")
    else:
        folder.remove()
        say("Stopped. Its files are deleted.")
    raise typer.Exit(INTERRUPTED if stopped_by == "Ctrl-C" else TERMINATED)
