"""How a command opens its store: by ``--url``, or as the settings say."""

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
from penstock.clock import SystemClock
from penstock.config import PREFIX, Settings
from penstock.core.job import Job
from penstock.errors import BadOption, JobGone, StoreMissing
from penstock.find_app import find_app
from penstock.stores import connect

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store; else PENSTOCK_URL, else url in penstock.toml.",
        show_default=False,
    ),
]
"""The parameter of every command that needs a store and no code."""


@contextmanager
def opened(url: str | None) -> Iterator[Penstock]:
    """An app without tasks on a store that exists; closed when the block ends.

    On failure: ``StoreMissing``, or ``BadOption`` for a store that is in another process's memory.
    The store is reached at the latest by the first call, which raises an ``EngineError`` if it
    cannot be.
    """
    with shared(url) as app:
        asyncio.run(check_made(app, url))
        yield app


@contextmanager
def shared(url: str | None) -> Iterator[Penstock]:
    """The same for a command that may make the store."""
    with Penstock(url) as app:
        check_shared(app)
        yield app


def stored_job(app: Penstock, id: str) -> Job:
    """A job as it is stored. On failure: ``JobGone``."""
    (job,) = app._facade.call(lambda client: client.engine.get([id]), what="status")
    if job is None:
        raise JobGone(id)
    return job


def located(target: str | None) -> Penstock:
    """The application of this name. What its module prints is a message, not data."""
    with redirect_stdout(sys.stderr):
        return find_app(target)


def check_shared(app: Penstock) -> None:
    """Refuse a store that ends with this process."""
    if app.url.scheme == "memory":
        why = "it lives in one process, and this is another; name one to share: sqlite:///jobs.db"
        raise BadOption("url", str(app.url), why)


async def check_made(app: Penstock, url: str | None) -> None:
    """Refuse a store that does not exist: opening it would make it."""
    match app.url.scheme:
        case "sqlite":
            _check_file(app.url.location, url)
        case "postgresql":
            await _check_schema(app, url)


async def _check_schema(app: Penstock, url: str | None) -> None:
    found = (await connect(app.url.text, SystemClock()).migrate(check=True)).found
    if not found:
        schema = app.url.options.get("schema", "penstock")
        why = f"the database has no schema {schema!r} with one"
        raise StoreMissing(str(app.url), why, _source(url))


def _check_file(path: str, url: str | None) -> None:
    try:
        known = os.stat(path)
    except FileNotFoundError:
        raise StoreMissing(path, "there is no such file", _source(url)) from None
    except OSError:
        return  # opening it says what is wrong
    if S_ISDIR(known.st_mode):
        raise StoreMissing(path, "it is a directory", _source(url))
    if known.st_size == 0:
        raise StoreMissing(path, "the file is empty", _source(url))


def _source(url: str | None) -> str:
    if url is not None:
        return "from --url"
    if os.environ.get(f"{PREFIX}URL"):
        return f"from {PREFIX}URL"
    if Penstock().settings.url != Settings().url:
        return "from the configuration file"
    return "the default, for nothing names one"
