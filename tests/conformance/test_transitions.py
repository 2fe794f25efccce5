"""Every change that a verb makes to a job is one that ``TRANSITIONS`` allows that verb."""

from __future__ import annotations

import pytest

from conformance.steps import everything
from conformance.story import Story
from penstock.core.job import FINAL, TRANSITIONS, Change, Job, State

SETTLE = {
    Change.SUCCEED,
    Change.FAIL,
    Change.RETRY,
    Change.SNOOZE,
    Change.RELEASE,
    Change.CRASH,
    Change.ABANDON,
    Change.CANCEL,
    Change.EXPIRE,
    Change.SUPERSEDE,
}
LIFT = {Change.LIFT, Change.POSTPONE}
DUE = {Change.PROMOTE, Change.EXPIRE}
ALLOWED = {
    "exchange": SETTLE | DUE | {Change.CLAIM},
    "promote": DUE,
    "rescue": {Change.RESCUE, Change.ABANDON, Change.CANCEL, Change.SUPERSEDE},
    "cancel": {Change.CANCEL},
    "retry": {Change.REVIVE},
    "hold": {Change.HOLD},
    "lift": LIFT,
    "join": LIFT,
    "repair": LIFT,
}
"""What each verb may do to a job; a verb that is not here may do nothing to its state."""


def reachable(state: State, changes: set[Change]) -> set[State]:
    """Every state that these changes can lead to, one after the other."""
    found, fresh = {state}, [state]
    while fresh:
        at = fresh.pop()
        for (start, change), end in TRANSITIONS.items():
            if start is at and change in changes and end not in found:
                found.add(end)
                fresh.append(end)
    return found


@pytest.mark.parametrize("seed", range(8))
async def test_every_change_obeys_the_table(engine, store, seed):
    story = Story(engine, store.clock, seed)
    before: dict[str, Job] = {}
    for _ in range(60):
        verb, _ = await story.chapter()
        after = {job.id: job for job in await everything(engine)}
        for id, job in after.items():
            if id in before:
                check_change(verb, before[id], job)
            else:
                assert verb == "enqueue"
                assert job.state.is_waiting
            check_sense(job)
        before = after


def check_change(verb, old, new):
    """What a verb did to one job it may do."""
    assert new.state in reachable(old.state, ALLOWED.get(verb, set())), (verb, old, new)
    assert new.claim >= old.claim
    assert new.errors[: len(old.errors)] == old.errors
    if old.state in FINAL and verb != "retry":
        assert new == old
    if (old.state, new.state) == (State.RUNNING, State.RUNNING) and old.claim == new.claim:
        assert (new.worker, new.claimed_at) == (old.worker, old.claimed_at)


def check_sense(job):
    """What is always true of a job."""
    assert (job.finished_at is not None) == job.state.is_final
    assert 0 <= job.attempt <= job.claim
    assert job.hold is None or job.state is State.READY
    assert (job.hold_cause is None and job.hold_until is None) or job.hold is not None
    assert job.cancel_reason is None or job.state is State.RUNNING
    assert not job.started or not job.state.is_waiting
    if job.state is State.RUNNING:
        assert job.worker is not None
        assert job.attempt >= 1
    if job.state is State.SCHEDULED:
        assert job.run_at is not None


async def test_the_story_reaches_every_state(engine, store):
    """A guard for the test above: a story that never leaves the start proves nothing."""
    story = Story(engine, store.clock, 3)
    seen = set()
    for _ in range(150):
        await story.chapter()
        seen |= {job.state for job in await everything(engine)}
    assert seen == set(State)
