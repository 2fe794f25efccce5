"""What is left of an attempt whose process was killed with ``kill -9``."""

from __future__ import annotations

import pytest

from penstock.core.job import State
from processes.conftest import Shop


@pytest.mark.parametrize("kind", ["thread", "loop", "child"])
def test_after_a_kill_a_task_goes_on_from_its_checkpoint(shop: Shop, kind: str) -> None:
    handle = shop.app.enqueue(f"processes.shop.climb_{'in' if kind == 'child' else 'on'}_{kind}")
    first = shop.worker()
    shop.until(lambda: handle.status().checkpoint == 5, "the checkpoint")
    assert handle.status().progress == 0.5
    first.kill()
    first.wait()
    shop.let_go()
    shop.worker()
    shop.until_ended([handle.id])
    job = handle.status()
    assert (job.state, job.result, job.progress) == (State.SUCCEEDED, 10, 1.0)
    assert (job.attempt, job.crashes) == (2, 1)
    assert [line[1] for line in shop.trace("from")] == ["0", "5"]
    assert [line[1] for line in shop.trace("step")] == [str(step) for step in range(1, 11)]


def test_after_a_kill_the_leader_enqueues_the_callback_of_a_job_that_may_have_run(
    shop: Shop,
) -> None:
    handle = shop.app.enqueue("processes.shop.transfer", at_most_once=True)
    first = shop.worker()
    shop.until(lambda: shop.trace("transfer"), "the attempt")
    first.kill()
    first.wait()
    shop.worker()
    shop.until(lambda: shop.trace("told"), "the callback")
    assert handle.status().state is State.FAILED
    assert [line[1:3] for line in shop.trace("told")] == [[handle.id, "may_have_run"]]
