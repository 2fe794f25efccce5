"""What garbage collections pass over in a process that is a worker."""

from __future__ import annotations

import gc

import pytest

from penstock import Penstock
from penstock.worker.runtime import spared


def test_what_is_there_is_skipped_until_the_end_of_the_block():
    before = gc.get_freeze_count()
    with spared():
        assert gc.get_freeze_count() > before + 1000
        assert len(gc.get_objects()) < 1000
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > 1000


def test_it_is_undone_though_the_block_fails():
    with pytest.raises(LookupError), spared():
        raise LookupError
    assert gc.get_freeze_count() == 0


def test_who_collects_nothing_is_left_alone():
    gc.disable()
    try:
        before = gc.get_freeze_count()
        with spared():
            assert gc.get_freeze_count() == before
    finally:
        gc.enable()


def test_a_process_that_is_a_worker_spares_what_it_has_loaded():
    frozen: list[int] = []
    with Penstock("memory://") as app:

        @app.task
        async def count() -> None:
            frozen.append(gc.get_freeze_count())

        count.enqueue()
        app.run_worker(until_empty=True)
    assert frozen[0] > 1000
    assert gc.get_freeze_count() == 0
