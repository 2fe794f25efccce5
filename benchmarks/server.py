"""The PostgreSQL server of one run, with its own defaults: fsync and synchronous_commit are on.

It is the server of the tests, in ``tests/servers``: a folder, a port and a user of its own, and
gone with this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.locations import SERVER

TESTS = Path(__file__).parents[1] / "tests"
DEFAULTS: Final[dict[str, Any]] = {
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
}
"""Where the tests have other settings."""


@contextmanager
def server_for(engine: str) -> Iterator[None]:
    """Run the server meanwhile, if the engine needs one and none is named in the environment."""
    if engine != "postgres" or SERVER in os.environ:
        yield
        return
    sys.path.append(str(TESTS))
    from servers.postgres import Postgres

    with Postgres(**DEFAULTS) as server:
        os.environ[SERVER] = server.url()
        try:
            yield
        finally:
            del os.environ[SERVER]
