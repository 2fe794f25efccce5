"""The command as a whole: the commands behind ``penstock``, and how each of them ends.

Exit codes, of every command: 0 success; 1 failure; 2 wrong usage; 130 Ctrl-C; 141 its output is no
longer read, as a shell shows SIGPIPE.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from penstock.cli import INTERRUPTED
from penstock.cli.prompts import fail
from penstock.errors import PenstockError, UsageError

SUMMARIES: Final = MappingProxyType(
    {
        "demo": "Show the background jobs of a small shop, live.",
        "worker": "Run the jobs of an application.",
        "enqueue": "Enqueue jobs and print their ids.",
        "jobs": "List, retry, cancel, edit and delete jobs.",
        "queues": "List, pause, resume and configure queues.",
        "tasks": "List the tasks that workers and the application know.",
        "workers": "List workers, and drain one before a deploy.",
        "explain": "Explain why a job has not run, and what to do.",
        "doctor": "Check a store, and say what is wrong and what to do.",
        "top": "Show queues, workers and running jobs, live.",
        "migrate": "Create or update the schema of a store.",
    }
)
"""What each command does, in the order a newcomer meets them.

Each is a module of this package with an ``EPILOG`` and a function of its own name, or with an
``app`` of several commands. It is imported when it is called: ``--help`` and the tab key import
none of them.
"""

NAME: Final = "penstock"
FAILED: Final = 1
MISUSED: Final = 2
UNREAD: Final = 141


def load(name: str) -> Any:
    """The command of this name."""
    module = import_module(f"penstock.cli.{name}")
    if hasattr(module, "app"):
        return get_command(module.app)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, epilog=module.EPILOG)(getattr(module, name))
    return get_command(alone)


class LazyGroup(TyperGroup):
    """The word ``penstock`` with all its commands behind it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(SUMMARIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands.get(cmd_name) is None and cmd_name in SUMMARIES:
            self.commands[cmd_name] = load(cmd_name)
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SUMMARIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def group(name: str, help: str) -> typer.Typer:
    """A word with commands behind it; alone, it prints its help."""
    return typer.Typer(
        name=name,
        help=help,
        callback=_show_help,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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


@app.callback(
    invoke_without_command=True,
    help="Penstock: a task queue and job scheduler that does not lose jobs.",
)
def penstock(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    _show_help(context)


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
        # Typer and rich end the process themselves on a broken pipe, each with a code of its own.
        if isinstance(stop.__context__, BrokenPipeError):
            return UNREAD
        return stop.code if isinstance(stop.code, int) else FAILED if stop.code else 0
    return 0


def _close_stdout() -> None:
    """Discard what is still buffered: the interpreter would complain when it exits."""
    if sys.__stdout__ is not None:
        with contextlib.suppress(OSError, ValueError):  # it has no file to begin with
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
