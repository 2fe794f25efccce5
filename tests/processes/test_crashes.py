"""Laws 2 to 5 with real processes and real signals."""

from __future__ import annotations

import signal
from collections import Counter

from penstock.core.job import State
from processes.conftest import Shop


def test_jobs_of_a_worker_that_is_killed_all_succeed(shop: Shop) -> None:
    """Thirty jobs, ten of them running when the process dies; a second worker does them all."""
    ids = shop.enqueue("patient", 30)
    first = shop.worker()
    shop.until(lambda: len(shop.trace("begin")) >= 10, "a full worker")
    first.kill()
    first.wait()
    shop.let_go()
    shop.worker()
    shop.until_ended(ids)
    jobs = [shop.app.job(id).status() for id in ids]
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert {job.failures for job in jobs} == {0}
    assert max(job.crashes for job in jobs) == 1
    ends = Counter(line[1] for line in shop.trace("end"))
    assert set(ends.values()) == {1}
    assert len(ends) == 30


def test_threads_of_a_worker_that_is_killed_leave_nothing_behind(shop: Shop) -> None:
    ids = shop.enqueue("threaded", 6)
    first = shop.worker()
    shop.until(lambda: len(shop.trace("begin")) >= 4, "busy threads")
    first.kill()
    first.wait()
    shop.let_go()
    shop.worker()
    shop.until_ended(ids)
    assert {shop.app.job(id).status().state for id in ids} == {State.SUCCEEDED}


def test_a_worker_stopped_past_its_lease_settles_and_claims_nothing_under_its_old_name(
    shop: Shop,
) -> None:
    """SIGSTOP, another worker takes over, SIGCONT: the late outcome is refused."""
    (id,) = shop.enqueue("patient", 1)
    first = shop.worker()
    shop.until(lambda: shop.trace("begin"), "the attempt")
    (old,) = {info.id for info in shop.app.workers()}
    shop.freeze(first)
    shop.worker()
    shop.until(lambda: len(shop.trace("begin")) == 2, "the second attempt")
    shop.let_go()
    shop.until_ended([id])
    settled = shop.app.job(id).status()
    first.send_signal(signal.SIGCONT)
    shop.until(lambda: len(shop.app.workers()) == 2, "its new name")
    more = shop.enqueue("quick", 40)
    shop.until_ended(more)
    jobs = [shop.app.job(each).status() for each in more]
    assert shop.app.job(id).status() == settled
    assert settled.state is State.SUCCEEDED
    assert settled.attempt == 2
    assert settled.worker != old
    assert old not in {job.worker for job in jobs}
    assert old not in {info.id for info in shop.app.workers()}


def test_a_store_that_is_away_for_longer_than_a_lease_costs_no_second_run(shop: Shop) -> None:
    """Nobody can write for three leases while handlers run; each of them ran once."""
    ids = shop.enqueue("patient", 5)
    shop.worker(lease=1.0, busy=0.2)
    shop.worker(lease=1.0, busy=0.2)
    shop.until(lambda: len(shop.trace("begin")) == 5, "five attempts")
    with shop.shut():
        started = shop.app.clock.monotonic()
        shop.let_go()
        shop.until(lambda: shop.app.clock.monotonic() - started > 3.0, "three leases")
    shop.until_ended(ids)
    assert {shop.app.job(id).status().state for id in ids} == {State.SUCCEEDED}
    assert [shop.app.job(id).status().attempt for id in ids] == [1] * 5
    assert len(shop.trace("begin")) == len(shop.trace("end")) == 5


def test_replies_lost_after_the_commit_lose_no_job(shop: Shop) -> None:
    """Every third exchange happens but its answer never arrives; nobody dies, and all jobs end."""
    ids = shop.enqueue("quick", 300)
    shop.worker(lose=3)
    shop.until_ended(ids)
    jobs = [shop.app.job(id).status() for id in ids]
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert {job.rescues for job in jobs} == {0}
    assert len(shop.trace("begin")) == 300


def test_one_poison_job_among_a_hundred_fails_alone(shop: Shop) -> None:
    """The job that kills its process reaches the dead letters; its neighbours all succeed."""
    ids = shop.enqueue("quick", 50)
    bad = shop.app.enqueue("processes.shop.poison", {}).id
    ids += shop.enqueue("quick", 50)
    shop.until_ended([*ids, bad], restart=True)
    assert {shop.app.job(id).status().state for id in ids} == {State.SUCCEEDED}
    poison = shop.app.job(bad).status()
    assert poison.state is State.FAILED
    assert "crash" in {error.kind for error in poison.errors}
    # Three are counted. Only a first one, started in a worker's hands, may die before the store
    # knows that it has started; from then on every claim counts as a start.
    assert poison.crashes == 3
    uncounted = poison.rescues - sum("worker died" in error.message for error in poison.errors)
    assert len(shop.trace("poison")) <= 3 + min(1, uncounted)


def test_many_killers_cost_no_neighbour_its_life(shop: Shop) -> None:
    """Jobs that were in one crash run in children; the next workers die of something else."""
    ids = shop.enqueue("patient", 3)
    for crash in range(3):
        worker = shop.worker(lease=1.0)
        shop.until(lambda: len(shop.trace("begin")) >= 3 * (crash + 1), "all neighbours")  # noqa: B023
        shop.app.enqueue("processes.shop.poison", {})
        worker.wait(60)
    shop.let_go()
    shop.worker(lease=1.0)
    shop.until_ended(ids)
    jobs = [shop.app.job(id).status() for id in ids]
    assert [(job.state, job.crashes) for job in jobs] == [(State.SUCCEEDED, 1)] * 3


def test_a_job_that_runs_at_most_once_is_not_run_again_after_a_crash(shop: Shop) -> None:
    id = shop.app.enqueue("processes.shop.payment", {}, at_most_once=True).id
    first = shop.worker(lease=1.0)
    shop.until(lambda: shop.trace("payment"), "the attempt")
    first.kill()
    first.wait()
    shop.let_go()
    shop.worker(lease=1.0)
    shop.until_ended([id])
    job = shop.app.job(id).status()
    assert job.state is State.FAILED
    assert job.reason == "may have run"
    assert len(shop.trace("payment")) == 1


def test_sigterm_lets_running_attempts_end(shop: Shop) -> None:
    ids = shop.enqueue("patient", 5)
    worker = shop.worker()
    shop.until(lambda: len(shop.trace("begin")) == 5, "five attempts")
    worker.send_signal(signal.SIGTERM)
    shop.let_go()
    assert worker.wait(60) == 0, shop.logs()
    assert [shop.app.job(id).status().attempt for id in ids] == [1] * 5
    assert {shop.app.job(id).status().state for id in ids} == {State.SUCCEEDED}
    assert shop.app.workers() == []
