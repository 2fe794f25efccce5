"""Garbage collection in a process that is a worker and nothing else.

Now and then Python searches all objects for cycles that nobody can reach. Nearly all that a worker
process has are modules, classes and functions, which stay as long as it lives; to look at them
again takes tens of milliseconds, in a large application hundreds, and meanwhile no job starts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spared() -> Iterator[None]:
    """Let collections pass over what is there now, for the time of the block; what of it becomes
    garbage stays until then.

    An application that has switched them off has decided, and is left alone.
    """
    if not gc.isenabled():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
