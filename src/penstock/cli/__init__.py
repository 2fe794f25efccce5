"""The command ``penstock``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, NoReturn

import typer

from penstock.cli import worker
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("worker", epilog=worker.EPILOG)(worker.worker)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {_version()}")
        raise typer.Exit


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "(not installed)"


@app.callback()
def penstock(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Say which it is."),
    ] = False,
) -> None:
    """Penstock: a task queue and job scheduler. Nothing lost, nobody starved."""


def main() -> NoReturn:
    """Run a command and exit: 0 it went as told, 1 it did not, 2 it was called in a wrong way."""
    _open_streams()
    try:
        code = app(standalone_mode=True)
    except PenstockError as error:
        typer.echo(f"Error: {error}", err=True)
        code = 2
    sys.exit(code)


def _open_streams() -> None:
    """Open the standard streams that somebody has closed: what takes their numbers, such as the
    socket of a worker process, would be taken for them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
