"""Orders to one worker: a cell under the worker's name, which each of its beats reads.

So an order costs no statement of its own, reaches a worker on any machine, and is heard of within a
beat, a fifth of the lease. It belongs to one process incarnation: if that dies first, the order is
void, for no other worker ever has the name.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engines.engine import Engine

PREFIX: Final = "penstock.worker."
KEPT: Final = 86400.0
"""Seconds after which an order is forgotten: a beat that comes so late is of a stopped worker."""
PAGE: Final = 200


class DrainOrder(msgspec.Struct, frozen=True):
    """Take no more jobs, let running attempts end, then stop."""

    within: float | None = None
    """Seconds that running attempts may go on; None: as the worker's settings say."""


_decoder: Final = msgspec.json.Decoder(DrainOrder)


def cell_of(worker: str) -> str:
    """The cell that the beats of this worker read."""
    return f"{PREFIX}{worker}"


def read(value: bytes | None) -> DrainOrder | None:
    """The order that a beat has brought; what is none is ignored."""
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError:
        return None


async def drain(engine: Engine, worker: str, within: float | None = None) -> bool:
    """Order a worker to drain and stop; False: no worker of this name has a lease.

    A later order takes the place of an earlier one; of two at once, one stands.
    """
    if all(each.id != worker for each in await engine.workers()):
        return False
    value, written = msgspec.json.encode(DrainOrder(within)), None
    while written is None:
        found = await engine.cell(cell_of(worker))
        written = await engine.set_cell(cell_of(worker), value, found.version, KEPT)
    return True


async def draining(engine: Engine) -> frozenset[str]:
    """The workers that have been ordered to drain, whether or not they still have a lease."""
    names: set[str] = set()
    cursor: str | None = None
    while True:
        page = await engine.cells(PREFIX, cursor, PAGE)
        names.update(name.removeprefix(PREFIX) for name, cell in page.cells if read(cell.value))
        cursor = page.cursor
        if cursor is None:
            return frozenset(names)
