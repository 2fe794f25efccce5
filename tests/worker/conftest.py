"""The fixtures of the worker's tests."""

from __future__ import annotations

import threading

import pytest

from worker.rig import Rig, patience


@pytest.fixture
async def rig(clock):
    """A store and a clock; at the end no handle is open and no thread of ours is left."""
    rig = Rig(clock)
    await rig.engine.open()
    yield rig
    await rig.engine.close()
    assert [handle for handle in rig.handles if handle.is_open] == []
    for thread in threading.enumerate():
        if thread.name.startswith("penstock-"):
            thread.join(patience)
            assert not thread.is_alive(), f"{thread.name} was left behind"
