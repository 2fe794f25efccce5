"""Commands that belong together under one word."""

from __future__ import annotations

import typer


def group(name: str, help: str) -> typer.Typer:
    """A word with commands behind it; alone, it says which."""
    return typer.Typer(
        name=name,
        help=help,
        callback=show_help,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
