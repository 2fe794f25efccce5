"""The fixtures of the conformance suite: every test runs once on each store."""

from __future__ import annotations

import pytest

from conformance.stores import STORES, Store, Watch


@pytest.fixture(params=STORES)
async def store(request, tmp_path, clock):
    """One empty store; nothing of it may be left open at the end."""
    made = STORES[request.param](tmp_path, clock)
    watch = Watch(tmp_path, made)
    store = Store(made.new_handle, clock)
    yield store
    await store.close()
    assert watch.leaks() == []


@pytest.fixture
async def engine(store):
    """An open handle on the store."""
    return await store.open()
