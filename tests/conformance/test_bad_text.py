"""Text that is no Unicode, and numbers no store can hold, are refused by every verb."""

from __future__ import annotations

from math import inf, nan

import pytest

from conformance.steps import joined, put, running, stored
from penstock.engines import changes
from penstock.engines.records import Ask, Filter, QueueSettings, Report, Sighting, WorkerInfo
from penstock.errors import ItemRefused

BAD = "a\ud800b"
CALLS = {
    "get": lambda engine: engine.get([BAD]),
    "cancel": lambda engine: changes.cancel(engine, [BAD], "why"),
    "cancel for": lambda engine: changes.cancel(engine, ["known"], BAD),
    "retry": lambda engine: changes.retry(engine, [BAD]),
    "join": lambda engine: engine.join(WorkerInfo(id="w", tasks=(BAD,))),
    "join as": lambda engine: engine.join(WorkerInfo(id=BAD)),
    "leave": lambda engine: engine.leave(BAD),
    "beat": lambda engine: engine.beat(BAD),
    "held": lambda engine: engine.held(BAD),
    "cell": lambda engine: engine.cell(BAD),
    "set_cell": lambda engine: engine.set_cell(BAD, b"", 0),
    "cells": lambda engine: engine.cells(BAD, None, 1),
    "set_queue": lambda engine: engine.set_queue(BAD, QueueSettings()),
    "set_queue for": lambda engine: engine.set_queue("mail", QueueSettings(note=BAD)),
    "find": lambda engine: engine.find(Filter(queues=(BAD,)), None, 5),
    "find too many": lambda engine: engine.find(Filter(), None, 10**30),
    "purge": lambda engine: engine.purge(Filter(tasks=(BAD,)), 5),
    "rescue": lambda engine: changes.rescue(engine, [Sighting(BAD, 0)], 1),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_what_no_store_can_hold_is_refused(engine, verb):
    await put(engine, "known")
    await joined(engine)
    with pytest.raises(ItemRefused, match="change the value"):
        await CALLS[verb](engine)
    assert (await stored(engine, "known")).cancel_reason is None


@pytest.mark.parametrize("note", [BAD, None])
@pytest.mark.parametrize("fraction", [nan, inf, -inf])
async def test_progress_that_is_no_number_is_refused(engine, fraction, note):
    job = await running(engine)
    assert job.worker is not None
    report = Report(job=job.id, claim=job.claim, fraction=fraction, note=note)
    with pytest.raises(ItemRefused):
        await engine.exchange(Ask(worker=job.worker, reports=(report,)))
    assert (await stored(engine, job.id)).progress is None


async def test_a_note_that_is_no_text_is_refused(engine):
    job = await running(engine)
    assert job.worker is not None
    with pytest.raises(ItemRefused):
        await engine.exchange(
            Ask(worker=job.worker, reports=(Report(job=job.id, claim=job.claim, note=BAD),))
        )
