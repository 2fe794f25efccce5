"""Notice that somebody has changed the code below a directory."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from importlib.util import find_spec

from penstock.errors import BadOption


def check_watchable() -> None:
    """Refuse ``--reload`` where nothing can watch files."""
    if find_spec("watchfiles") is None:
        why = "watching files needs a package that is not installed: pip install 'penstock[reload]'"
        raise BadOption("reload", True, why)


async def changes(directory: str) -> AsyncIterator[list[str]]:
    """The Python files that were changed, each time some were."""
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # what it sees is said once, by us
    async for changed in awatch(directory, watch_filter=PythonFilter()):
        yield sorted(path.removeprefix(directory).lstrip(os.sep) for _, path in changed)
