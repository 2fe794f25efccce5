"""The commands by name, each loaded when it is called: a person who asks for help, or presses the
tab key, waits for none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

SUMMARIES: Final = MappingProxyType(
    {
        "demo": "Show a little shop's background work, live.",
        "worker": "Run the jobs of an application until told to stop.",
        "enqueue": "Store jobs; print their ids.",
        "jobs": "See jobs, send them back to run, cancel or delete them.",
        "queues": "See, pause and resume queues, decide about them.",
        "explain": "Say why a job has not run, and what to do.",
        "doctor": "Say what is wrong with a store, and what to do.",
        "top": "Show how the store does, live.",
        "migrate": "Bring the schema of a store up to date.",
    }
)
"""What each command does, in the order a newcomer meets them.

Each is a module of this package with an ``EPILOG`` and a function of its own name, or with an
``app`` of several commands.
"""


def load(name: str) -> Any:
    """The command of this name."""
    module = import_module(f"penstock.cli.{name}")
    if hasattr(module, "app"):
        return get_command(module.app)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, epilog=module.EPILOG)(getattr(module, name))
    return get_command(alone)


class Commands(MutableMapping[str, Any]):
    """Those that were called so far, and the names of all."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in SUMMARIES:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


class LazyGroup(TyperGroup):
    """The word ``penstock`` with all its commands behind it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SUMMARIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))
