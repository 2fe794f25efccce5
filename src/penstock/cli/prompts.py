"""What a command says on stderr, beside its data: messages, questions, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from penstock.cli.output import visible, visible_lines
from penstock.errors import PenstockError, UsageError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]
"""The parameters of every command that asks before it acts."""


def say(text: str) -> None:
    """Tell the person one line; if stderr cannot be written, the work goes on."""
    with suppress(OSError):
        print(visible(text), file=sys.stderr, flush=True)


def fail(error: PenstockError | OSError) -> None:
    """Tell what went wrong: one line, and what is quoted below it."""
    with suppress(OSError):
        print(*visible_lines(f"Error: {error}"), sep="\n", file=sys.stderr, flush=True)
    for note in getattr(error, "__notes__", ()):
        say(note)


def confirm(question: str, *, yes: bool) -> bool:
    """Ask, unless ``yes`` was said beforehand; anything but "y" or "yes" means no.

    On failure: ``UsageError`` if the input is no terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question!r} cannot be asked, because the input is not a terminal; "
            "add --yes, or use --dry-run to see what would be done"
        )
    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip().lower() in ("y", "yes"):
        return True
    say("Nothing was changed.")
    return False


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal while the block runs; the block calls what it is given with how much
    more is done. ``total``: None where it is not known.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        # Else what is printed meanwhile would go where the bar is.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda more: bar.advance(task, more)
