"""The command as a whole: the words behind ``penstock``, and how each of them ends.

Exit codes, of every command: 0 it went as told; 1 it did not; 2 it was called in a wrong way;
130 Ctrl-C; 141 nobody reads its output any more, as a shell shows SIGPIPE.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from penstock.cli import INTERRUPTED
from penstock.cli.commands import LazyGroup
from penstock.cli.dialogue import fail
from penstock.errors import PenstockError, UsageError

NAME: Final = "penstock"
FAILED: Final = 1
MISUSED: Final = 2
UNREAD: Final = 141

app = typer.Typer(name=NAME, cls=LazyGroup, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:
        return "(not installed)"


@app.callback(invoke_without_command=True)
def penstock(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Say which it is."),
    ] = False,
) -> None:
    """Penstock: a task queue and job scheduler. Nothing lost, nobody starved."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = UNREAD
    except KeyboardInterrupt:
        code = INTERRUPTED
    except PenstockError as error:
        fail(error)
        code = MISUSED if isinstance(error, UsageError) else FAILED
    except OSError as error:  # such as a disk that is full, under stdout
        fail(error)
        code = FAILED
    if code == UNREAD:
        _close_stdout()
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        app(list(arguments), prog_name=NAME)
    except SystemExit as stop:
        # Typer and rich end the process themselves when nobody reads, each with a code of its own.
        if isinstance(stop.__context__, BrokenPipeError):
            return UNREAD
        return stop.code if isinstance(stop.code, int) else FAILED if stop.code else 0
    return 0


def _close_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter would complain at its end."""
    if sys.__stdout__ is not None:
        with contextlib.suppress(OSError, ValueError):  # it has no file to begin with
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
