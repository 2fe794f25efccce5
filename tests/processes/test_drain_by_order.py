"""``penstock workers drain`` on real processes: supervised ones and those of an application."""

from __future__ import annotations

import subprocess
import sys

from penstock.core.job import State
from processes.conftest import Shop, any_store


def penstock(shop: Shop, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, "--url", shop.url],
        env=shop.environment,
        cwd=shop.place,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_supervised_worker_is_drained_and_its_supervisor_ends(shop: Shop) -> None:
    ids = shop.enqueue("patient", 3)
    worker = shop.supervisor("--lease", "2s")
    shop.until(lambda: len(shop.trace("begin")) == 3, "three attempts")
    (info,) = shop.app.workers()
    done = penstock(shop, "workers", "drain", info.id)
    assert (done.returncode, done.stderr) == (0, "")
    shop.until(lambda: "drain ordered" in worker.text(), "the order")
    later = shop.enqueue("patient", 1)
    shop.let_go()
    assert worker.ended() == 0, worker.text()
    assert {shop.app.job(id).status().state for id in ids} == {State.SUCCEEDED}
    assert shop.app.job(later[0]).status().state is State.READY
    assert shop.app.workers() == []


@any_store
def test_of_two_processes_only_the_drained_one_stops(shop: Shop) -> None:
    worker = shop.supervisor("--processes", "2", "--lease", "2s")
    shop.until(lambda: len(shop.app.workers()) == 2, "two workers")
    first, second = shop.app.workers()
    assert penstock(shop, "workers", "drain", first.id).returncode == 0
    shop.until(lambda: [each.id for each in shop.app.workers()] == [second.id], "one worker")
    shop.let_go()
    shop.until_ended(shop.enqueue("patient", 2))
    assert worker.process.poll() is None
    assert penstock(shop, "workers", "drain", second.id).returncode == 0
    assert worker.ended() == 0, worker.text()


def test_a_worker_inside_an_application_is_drained(shop: Shop) -> None:
    process = shop.worker(lease=2.0)
    shop.until(shop.app.workers, "a worker")
    (info,) = shop.app.workers()
    assert penstock(shop, "workers", "drain", info.id, "--within", "5s").returncode == 0
    assert process.wait(60) == 0, shop.logs()
    assert shop.app.workers() == []
