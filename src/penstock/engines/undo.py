"""A ``with`` whose end no exception out of nowhere can skip.

The interpreter lets signal handlers in between the steps of Python code, also between those of a
``finally``: what they raise there keeps the rest of it from being done. ``io.IOBase`` enters and
leaves a ``with`` in C, where they have to wait. So what is taken inside an ``Undo`` is given back,
however many of them come in a row.
"""

from __future__ import annotations

import io
from collections.abc import Callable


class Undo(io.IOBase):
    """Makes a call at the end of a ``with``; the call must be a built-in function, or partial."""

    def __init__(self, call: Callable[[], object]) -> None:
        vars(self)["close"] = call  # what leaving the ``with`` calls

    def forget(self) -> None:
        """Do nothing from now on."""
        vars(self)["close"] = int

    def __del__(self) -> None:
        """A file closes itself here; this is none."""
