"""How a command finds its store: by ``--url``, by the application, or as the settings say."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from stat import S_ISDIR
from typing import Annotated

import typer

from penstock.app import Penstock
from penstock.cli.prompts import say
from penstock.clock import SystemClock
from penstock.config import PREFIX, Settings
from penstock.core.job import Job
from penstock.errors import BadOption, JobGone, StoreMissing, UsageError
from penstock.explain.reasons import argument
from penstock.find_app import VARIABLE, find_app_on
from penstock.stores import connect, parse

AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="The application whose store it is. [default: PENSTOCK_APP, unless --url is given]",
        show_default=False,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store. [default: the application's, else PENSTOCK_URL, else url in "
        "penstock.toml, else sqlite:///penstock.db]",
        show_default=False,
    ),
]
"""The two parameters of every command that needs a store."""


@contextmanager
def opened(name: str | None, url: str | None) -> Iterator[Penstock]:
    """The application that is named, or one without tasks, on a store that exists; closed when the
    block ends.

    On failure: ``StoreMissing``, or ``BadOption`` for a store that is in another process's memory.
    The store is reached at the latest by the first call, which raises an ``EngineError`` if it
    cannot be.
    """
    with shared(name, url) as app:
        asyncio.run(check_made(app, source(app, name, url)))
        yield app


@contextmanager
def shared(name: str | None, url: str | None) -> Iterator[Penstock]:
    """The same for a command that may make the store."""
    with located(name, url) as app:
        check_shared(app)
        yield app


def stored_job(app: Penstock, id: str) -> Job:
    """A job as it is stored. On failure: ``JobGone``."""
    (job,) = app._facade.call(lambda client: client.engine.get([id]), what="status")
    if job is None:
        raise JobGone(id)
    return job


def located(name: str | None, url: str | None) -> Penstock:
    """The application that ``name`` or PENSTOCK_APP names, on the store that ``url`` names if it is
    given; without a name, an application that has no tasks.

    What its module prints is a message, not data. If its code and ``url`` or PENSTOCK_URL name
    different stores, that is said.
    """
    chosen = app_name(name, url)
    if chosen is None:
        return Penstock(url)
    with redirect_stdout(sys.stderr):
        app, warning = find_app_on(chosen, url)
    if warning is not None:
        say(f"Warning: {warning}.")
    return app


def app_name(name: str | None, url: str | None) -> str | None:
    """The application that a command is about; with ``url`` alone, none."""
    if name is not None:
        return name
    return None if url is not None else os.environ.get(VARIABLE, "").strip() or None


def one_name(argument: str | None, option: str | None) -> str | None:
    """The application, where it may be named as an argument or by ``--app``."""
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"two applications are named, {argument} and --app {option}; give one")
    return option if argument is None else argument


def options(name: str | None, url: str | None) -> str:
    """What was given of --app and --url, to be written behind another command."""
    given = [] if name is None else ["--app", argument(name)]
    given += [] if url is None else ["--url", argument(parse(url).absolute)]
    return " ".join(given)


def check_shared(app: Penstock) -> None:
    """Refuse a store that ends with this process."""
    if app.url.scheme == "memory":
        why = "it lives in one process, and this is another; name one to share: sqlite:///jobs.db"
        raise BadOption("url", str(app.url), why)


async def check_made(app: Penstock, named: str) -> None:
    """Refuse a store that does not exist: opening it would make it. ``named`` tells where its name
    is from.
    """
    match app.url.scheme:
        case "sqlite":
            _check_file(app.url.location, named)
        case "postgresql":
            await _check_schema(app, named)


async def _check_schema(app: Penstock, named: str) -> None:
    found = (await connect(app.url.text, SystemClock()).migrate(check=True)).found
    if not found:
        schema = app.url.options.get("schema", "penstock")
        why = f"the database has no schema {schema!r} with one"
        raise StoreMissing(str(app.url), why, named)


def _check_file(path: str, named: str) -> None:
    try:
        known = os.stat(path)
    except FileNotFoundError:
        raise StoreMissing(path, "there is no such file", named) from None
    except OSError:
        return  # opening it says what is wrong
    if S_ISDIR(known.st_mode):
        raise StoreMissing(path, "it is a directory", named)
    if known.st_size == 0:
        raise StoreMissing(path, "the file is empty", named)


def source(app: Penstock, name: str | None, url: str | None) -> str:
    """Where the name of a store is from."""
    if url is not None:
        return "from --url"
    chosen = app_name(name, url)
    if chosen is not None and app._url_in_code is not None:
        return f"from the code of {chosen}"
    if os.environ.get(f"{PREFIX}URL"):
        return f"from {PREFIX}URL"
    if Penstock().settings.url != Settings().url:
        return "from the configuration file"
    return "the default, because nothing names a store"
