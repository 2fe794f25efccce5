"""How a supervised worker ends: in peace, in time, by force, and when its supervisor is dead."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock.core.job import State
from processes.conftest import Shop, any_store

STOPS = [signal.SIGTERM, signal.SIGINT]


def states(shop: Shop, ids: list[str]) -> Counter[State]:
    return Counter(shop.app.job(id).status().state for id in ids)


def assert_each_ran_once(shop: Shop, count: int) -> None:
    for word in ("begin", "end"):
        numbers = sorted(int(line[1]) for line in shop.trace(word))
        assert numbers == list(range(count)), word


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_hundred_running_jobs_all_end_before_the_worker_does(
    shop: Shop, number: signal.Signals
) -> None:
    ids = shop.enqueue("patient", 100)
    worker = shop.supervisor("--concurrency", "100", "--drain", "60s")
    shop.until(lambda: len(shop.trace("begin")) == 100, "a hundred attempts")
    worker.send(number)
    shop.until(lambda: "worker draining" in worker.text(), "the drain")
    shop.let_go()
    assert worker.ended() == 0, worker.text()
    assert states(shop, ids) == {State.SUCCEEDED: 100}
    assert_each_ran_once(shop, 100)
    assert shop.app.workers() == []


def test_what_runs_past_the_deadline_is_given_back_and_runs_elsewhere(shop: Shop) -> None:
    ids = shop.enqueue("patient", 5)
    worker = shop.supervisor("--drain", "100ms")
    shop.until(lambda: len(shop.trace("begin")) == 5, "five attempts")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0, worker.text()
    assert states(shop, ids) == {State.READY: 5}
    shop.let_go()
    shop.supervisor("--until-empty")
    shop.until_ended(ids)
    jobs = [shop.app.job(id).status() for id in ids]
    assert {(job.state, job.attempt, job.failures) for job in jobs} == {(State.SUCCEEDED, 2, 0)}
    assert {job.crashes for job in jobs} == {0}


def test_the_second_ctrl_c_gives_back_what_runs_at_once(shop: Shop) -> None:
    ids = shop.enqueue("patient", 3)
    worker = shop.supervisor("--drain", "10m")
    shop.until(lambda: len(shop.trace("begin")) == 3, "three attempts")
    worker.send(signal.SIGINT)
    shop.until(lambda: "worker draining" in worker.text(), "the drain")
    worker.send(signal.SIGINT)
    assert worker.ended() == 0, worker.text()
    assert 'stopping now why=Ctrl-C hint="running attempts are given back"' in worker.text()
    assert states(shop, ids) == {State.READY: 3}


def test_the_third_signal_kills_and_its_jobs_are_ready_at_once(shop: Shop) -> None:
    """The process is stopped and hears nothing; the supervisor still sees to its jobs."""
    ids = shop.enqueue("patient", 3)
    worker = shop.supervisor("--drain", "10m", "--lease", "10m", "--grace", "10m")
    shop.until(lambda: len(shop.trace("begin")) == 3, "three attempts")
    (child,) = shop.pids()
    os.kill(child, signal.SIGSTOP)
    for said in ("stopping why=SIGTERM", "stopping now why=SIGTERM"):
        worker.send(signal.SIGTERM)
        shop.until(lambda: said in worker.text(), said)  # noqa: B023
    worker.send(signal.SIGTERM)
    assert worker.ended() == 1, worker.text()
    assert "killing all processes why=SIGTERM" in worker.text()
    assert states(shop, ids) == {State.READY: 3}
    assert shop.app.workers() == []


def test_a_process_that_does_not_end_in_time_is_killed(shop: Shop) -> None:
    ids = shop.enqueue("patient", 1)
    worker = shop.supervisor("--drain", "0s", "--grace", "0s", "--lease", "10m")
    shop.until(lambda: shop.trace("begin"), "the attempt")
    (child,) = shop.pids()
    os.kill(child, signal.SIGSTOP)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 1, worker.text()
    assert f'process killed pid={child} why="it did not end in time"' in worker.text()
    assert states(shop, ids) == {State.READY: 1}


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_signal_to_one_process_drains_it_and_another_follows(
    shop: Shop, number: signal.Signals
) -> None:
    ids = shop.enqueue("patient", 4)
    worker = shop.supervisor("--processes", "2", "--concurrency", "2")
    shop.until(lambda: len(shop.trace("begin")) == 4, "four attempts")
    before = shop.pids()
    first = min(before)
    os.kill(first, number)
    shop.let_go()
    shop.until(lambda: first not in shop.pids() and len(shop.pids()) == 2, "its successor")
    shop.until_ended(ids)
    assert_each_ran_once(shop, 4)
    assert before - {first} < shop.pids()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


def test_processes_whose_supervisor_is_killed_drain_and_end(shop: Shop) -> None:
    ids = shop.enqueue("patient", 4)
    worker = shop.supervisor("--processes", "2", "--concurrency", "2", "--drain", "60s")
    shop.until(lambda: len(shop.trace("begin")) == 4, "four attempts")
    worker.process.kill()
    worker.process.wait()
    shop.until(lambda: worker.text().count("supervisor gone") == 2, "their notice")
    shop.let_go()
    shop.until(lambda: shop.app.workers() == [], "their end")
    assert states(shop, ids) == {State.SUCCEEDED: 4}
    assert_each_ran_once(shop, 4)


@any_store
def test_a_process_that_still_loads_ends_with_its_supervisor(shop: Shop) -> None:
    (shop.place / "endless.py").write_text(
        "import os, pathlib, threading\n"
        "pathlib.Path('new').write_text(str(os.getpid()))\n"
        "os.rename('new', 'sign')\n"
        "threading.Event().wait()\n"
    )
    worker = shop.supervisor(module="endless:app")
    shop.until((shop.place / "sign").exists, "the process")
    child = int((shop.place / "sign").read_text())
    worker.process.kill()
    worker.process.wait()
    shop.until(lambda: not is_there(child), "its end")


def is_there(pid: int) -> bool:
    """It lives: one that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_until_empty_ends_all_processes_when_nothing_is_left(shop: Shop) -> None:
    ids = shop.enqueue("quick", 50)
    worker = shop.supervisor("--until-empty", "--processes", "2")
    assert worker.ended() == 0, worker.text()
    assert states(shop, ids) == {State.SUCCEEDED: 50}


def test_a_status_line_comes_when_asked_for(shop: Shop) -> None:
    worker = shop.supervisor("--processes", "2", "--queues", "default,mail")
    ready = "penstock worker ready processes=2 queues=default,mail tasks="
    shop.until(lambda: ready in worker.text(), "the ready line")
    shop.until_ended(shop.enqueue("quick", 7))

    def asked() -> bool:
        worker.send(signal.SIGUSR1)
        return "status processes=2 running=0 waiting=0 succeeded=7 failed=0" in worker.text()

    shop.until(asked, "the status")
