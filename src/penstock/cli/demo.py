"""``penstock demo``: a little shop's background work, live."""

from __future__ import annotations

import signal
from typing import Annotated, Final

import typer

from penstock.cli.prompts import say
from penstock.errors import PenstockError, ProcessFailed

EPILOG: Final = """\
It makes a store of its own, an SQLite file in a temporary folder that stays until you delete it,
and says at its end which commands to try on it.

Exit codes: 0 it has ended, by itself or by the key q; 1 something went wrong; 2 it was called in a
wrong way; 130 Ctrl-C.

Example: penstock demo --stay
"""

INTERRUPTED: Final = 130
TERMINATED: Final = 143


def demo(
    stay: Annotated[
        bool, typer.Option("--stay", help="Let orders come in until q or Ctrl-C.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="A new folder for the store; else a temporary one."),
    ] = None,
) -> None:
    """Show a little shop's background work: two processes, retries, crashes, dead letters."""
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
        say(f"Stopped. What was done stays in {folder.path}")
    else:
        folder.remove()
        say("Stopped. Nothing is left of it.")
    raise typer.Exit(INTERRUPTED if stopped_by == "Ctrl-C" else TERMINATED)
