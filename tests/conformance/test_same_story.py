"""One model: the same story told to the reference and to this store ends the same, verb by verb."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conformance.steps import everything
from conformance.stores import reference
from conformance.story import Story
from penstock.engines.records import Filter
from penstock.testing.clock import FakeClock


async def picture(engine):
    """All that can be seen of a store; tickets by their order, the numbers are the engine's own."""
    jobs = await everything(engine)
    line = {job.id: number for number, job in enumerate(sorted(jobs, key=lambda job: job.order))}
    counts = await engine.counts(Filter())
    return {
        "jobs": [replace(job, seq=line[job.id]) for job in jobs],
        "counts": sorted(counts, key=str),
        "queues": await engine.queues(),
        "workers": await engine.workers(),
    }


@pytest.mark.parametrize("seed", range(20))
async def test_the_same_story_ends_the_same(engine, store, seed):
    other_clock = FakeClock(store.clock.now())
    other = reference(other_clock)
    await other.open()
    here, there = Story(engine, store.clock, seed), Story(other, other_clock, seed)
    for _ in range(60):
        assert await here.chapter() == await there.chapter()
        assert await picture(engine) == await picture(other)
    await other.close()
