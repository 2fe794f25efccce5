"""What a supervisor does for processes that die, hang, or hold their interpreter."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from penstock.core.job import State
from processes.conftest import Shop, any_store

KILLS = 8
JOBS = 1500


async def enqueued(shop: Shop, count: int) -> list[str]:
    name = "processes.shop.brief"
    jobs = (shop.app.aenqueue(name, {"number": number}) for number in range(count))
    return [job.id for job in await asyncio.gather(*jobs)]


def killed(shop: Shop, chance: random.Random) -> bool:
    """Kill one of those that have a lease; False: there is none, or it was dead already."""
    pids = sorted(shop.pids())
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


@pytest.mark.timeout(300)
def test_processes_killed_every_second_lose_no_job(shop: Shop) -> None:
    """Jobs in three processes, one of which dies each second; ``make chaos`` does it for longer."""
    chance = random.Random(7)
    worker = shop.supervisor("--processes", "3", "--concurrency", "3", "--lease", "60s")
    shop.until(lambda: len(shop.pids()) == 3, "three processes")
    ids = asyncio.run(enqueued(shop, JOBS))
    for _ in range(KILLS):
        killed_at = time.monotonic()
        shop.until(lambda: killed(shop, chance), "somebody to kill")
        shop.until(lambda: time.monotonic() - killed_at >= 1, "the next second")  # noqa: B023
    shop.until(lambda: all(each.state.is_final for each in shop.app.counts()), "the end")
    jobs = [shop.app.job(id).status() for id in ids]
    unlucky = [job for job in jobs if job.state is not State.SUCCEEDED]
    assert [(job.reason, job.crashes, job.rescues) for job in unlucky] == []
    assert {job.failures for job in jobs} == {0}
    assert {int(line[1]) for line in shop.trace("begin")} == set(range(JOBS))
    assert worker.process.poll() is None, worker.text()


def test_jobs_of_a_killed_process_run_again_long_before_its_lease_ends(shop: Shop) -> None:
    ids = shop.enqueue("patient", 3)
    worker = shop.supervisor("--lease", "10m")
    shop.until(lambda: len(shop.trace("begin")) == 3, "three attempts")
    (child,) = shop.pids()
    os.kill(child, signal.SIGKILL)
    shop.let_go()
    shop.until_ended(ids)
    jobs = [shop.app.job(id).status() for id in ids]
    assert {(job.state, job.crashes) for job in jobs} == {(State.SUCCEEDED, 1)}
    assert child not in shop.pids()
    assert "dead worker's jobs rescued" in worker.text()
    assert "settled=0 rescued=3" in worker.text()


def test_what_a_killed_process_has_done_is_in_the_sum(shop: Shop) -> None:
    worker = shop.supervisor()
    shop.until_ended(shop.enqueue("quick", 300))
    shop.until_ended(shop.enqueue("quick", 1))  # so the replies for all others have come
    (child,) = shop.pids()
    os.kill(child, signal.SIGKILL)
    shop.until(lambda: shop.pids() - {child}, "another process")
    shop.until_ended(shop.enqueue("quick", 5))
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    sums = [f"ended succeeded={count} failed=0 retried=0" in worker.text() for count in (305, 306)]
    assert any(sums), worker.text()


def module(place: Path, name: str, text: str) -> str:
    (place / f"{name}.py").write_text(text)
    return f"{name}:app"


@any_store
def test_a_process_that_dies_before_it_works_is_started_five_times_then_never(shop: Shop) -> None:
    name = module(shop.place, "dying", "import os\nos._exit(3)\n")
    worker = shop.supervisor(module=name)
    assert worker.ended() == 1
    said = worker.text()
    assert 'gave up why="a process ended 5 times in a row before it could work' in said
    assert "exited with 3 and did not say why" in said
    assert [f"process restarts after={pause}" in said for pause in ("500ms", "1s", "2s", "4s")] == [
        True
    ] * 4
    assert "process restarts after=8s" not in said


@any_store
def test_an_application_that_does_not_load_is_not_tried_twice(shop: Shop) -> None:
    name = module(shop.place, "broken", "import nowhere_to_be_found\n")
    worker = shop.supervisor(module=name)
    assert worker.ended() == 1
    said = worker.text()
    assert "gave up" in said
    assert "importing 'broken' failed; correct this first:" in said
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in said
    assert 'broken.py", line 1' in said
    assert "process restarts" not in said


def test_a_process_that_dies_when_it_has_joined_is_started_again_later_each_time(
    shop: Shop,
) -> None:
    text = (
        "import os, pathlib, threading\n"
        "from penstock import Penstock\n"
        f"app = Penstock({shop.url!r})\n"
        "def end():\n"
        "    while not any(f'-{os.getpid()}-' in info.id for info in app.workers()): pass\n"
        "    os._exit(5)\n"
        "if not pathlib.Path('good').exists():\n"
        "    threading.Thread(target=end, daemon=True).start()\n"
    )
    worker = shop.supervisor(module=module(shop.place, "fleeting", text))
    shop.until(lambda: "process restarts after=2s" in worker.text(), "the third pause")
    (shop.place / "good").touch()
    shop.until(lambda: "penstock worker ready" in worker.text(), "a process that lives")
    assert worker.process.poll() is None
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


@pytest.mark.timeout(200)
def test_a_handler_that_holds_the_interpreter_keeps_its_lease(shop: Shop) -> None:
    """Its process cannot beat for nine seconds of a lease of six, while another watches."""
    watching = shop.supervisor("--queues", "other", "--lease", "6s")
    shop.until(lambda: len(shop.pids()) == 1, "the watcher")
    shop.supervisor("--queues", "default", "--lease", "6s", "--no-leads")
    job = shop.app.enqueue("processes.shop.hold_interpreter", {"seconds": 9}).id
    shop.until_ended([job])
    done = shop.app.job(job).status()
    assert (done.state, done.attempt, done.rescues) == (State.SUCCEEDED, 1, 0)
    assert len(shop.trace("begin")) == 1
    assert watching.process.poll() is None


def test_a_process_without_a_sign_of_life_is_killed_in_the_end(shop: Shop) -> None:
    ids = shop.enqueue("patient", 2)
    worker = shop.supervisor("--lease", "10m", "--hang-limit", "10s")
    shop.until(lambda: len(shop.trace("begin")) == 2, "two attempts")
    (child,) = shop.pids()
    os.kill(child, signal.SIGSTOP)
    shop.let_go()
    shop.until_ended(ids)
    assert f"process killed pid={child}" in worker.text()
    assert child not in shop.pids()
    assert {shop.app.job(id).status().state for id in ids} == {State.SUCCEEDED}


def test_a_thread_stuck_in_c_costs_its_process_and_is_counted_once(shop: Shop) -> None:
    """The attempt fails once, by its timeout; the process is replaced; the job runs no more."""
    worker = shop.supervisor("--stall-limit", "500ms", "--drain", "500ms", "--grace", "1s")
    shop.until(lambda: len(shop.pids()) == 1, "the process")
    (first,) = shop.pids()
    job = shop.app.enqueue("processes.shop.stuck", {}).id
    others = shop.enqueue("brief", 20)
    shop.until_ended([job, *others])
    shop.until(lambda: shop.pids() and first not in shop.pids(), "its successor")
    done = shop.app.job(job).status()
    assert (done.state, done.failures, done.crashes, done.attempt) == (State.FAILED, 1, 0, 1)
    assert len(shop.trace("stuck")) == 1
    assert "process replaced" in worker.text()
    assert {shop.app.job(id).status().state for id in others} == {State.SUCCEEDED}
