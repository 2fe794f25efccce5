"""Outcomes that the store cannot keep: their own job fails, and no other."""

from __future__ import annotations

import logging

from penstock.core.job import State
from worker.rig import sent, specs


async def test_one_outcome_that_cannot_be_stored_fails_its_job_and_no_other(rig, caplog):
    caplog.set_level(logging.ERROR)

    async def answer(n: int) -> int:
        return n

    async with rig.working(specs(answer)):
        rig.main.refuse(lambda outcome: getattr(outcome, "result", None) == b"3")
        ids = [await rig.put("answer", b'{"n":%d}' % n) for n in range(8)]
        jobs = await rig.ended(*ids)

    bad = jobs.pop(3)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert bad.state is State.FAILED
    assert bad.reason is not None
    assert bad.reason.startswith("result could not be stored: the test refuses")


async def test_a_job_whose_very_failure_cannot_be_stored_fails_without_a_word(rig):
    async def answer() -> int:
        return 1

    async with rig.working(specs(answer)):
        rig.main.refuse(lambda outcome: getattr(outcome, "result", None) or outcome.reason)
        (job,) = await rig.ended(await rig.put("answer"))

    assert (job.state, job.reason) == (State.FAILED, None)
    assert len(sent(rig.main)) >= 3
