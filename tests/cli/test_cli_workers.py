"""``penstock workers`` and ``penstock tasks``: what they list, and draining."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from cli.conftest import Shell
from penstock import Penstock
from penstock.events import WorkerJoined
from penstock.hosting import WorkerThread

YARD = """
from penstock import Penstock
app = Penstock("sqlite:///jobs.db")
@app.task(queue="mail", retries=2, timeout="30s")
async def send(to: str) -> str: ...
@app.task(retries=lambda failures, error: None)
def shrink() -> None: ...
"""


@pytest.fixture
def worker(store: Shell, here: Path) -> Iterator[WorkerThread]:
    """A worker inside this process, which knows one task of its own."""
    app = Penstock("sqlite:///jobs.db")

    @app.task(name="yard.send", queue="mail")
    async def send(to: str) -> str:
        return to

    @app.task(name="yard.old", queue="mail")
    def old() -> None: ...

    joined = Event()
    app.on(WorkerJoined, lambda _: joined.set())
    thread = app.worker_thread(queues="mail=5,default", name="crane", lease="1s").start()
    assert joined.wait(60)
    yield thread
    thread.stop(0)
    app.close()


def test_workers_are_listed_with_what_they_serve(store: Shell, worker: WorkerThread) -> None:
    (found,) = store("workers", "list", "--json").document["workers"]
    assert found["worker"].startswith("crane-")
    assert found["queues"] == ["mail", "default"]
    assert found["queue_slots"] == {"mail": 5}
    assert found["tasks"] == ["yard.send", "yard.old"]
    assert (found["slots"], found["draining"], found["lease"]) == (112, False, 1.0)
    titles, row = store("workers", "list").out.splitlines()
    assert titles.split() == ["WORKER", "HOST", "PID", "BUSY", "TASKS", "JOINED", "STATE", "QUEUES"]
    assert row.split()[0] == found["worker"]
    assert row.endswith("working  mail=5, default")


def test_a_store_without_workers_says_so(store: Shell) -> None:
    assert store("workers", "list").err == "There are no workers.\n"


def test_a_worker_is_drained_by_its_name(store: Shell, worker: WorkerThread) -> None:
    name = worker.worker.id
    done = store("workers", "drain", name)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"Worker {name} will stop when its running jobs have ended.\n"
    worker.worker.ready.clear()
    assert worker._thread is not None
    worker._thread.join(60)
    assert not worker.is_alive
    assert store("workers", "list", "--json").document == {"workers": []}


def test_a_worker_that_is_not_there_cannot_be_drained(store: Shell) -> None:
    done = store("workers", "drain", "nobody")
    assert (done.code, done.out) == (1, "")
    assert done.err == "Error: there is no worker 'nobody'; see penstock workers list\n"
    assert store("workers", "drain", "nobody", "--json").document == {
        "workers": [{"worker": "nobody", "draining": False}]
    }


def test_tasks_of_the_workers_are_listed(store: Shell, worker: WorkerThread) -> None:
    assert store("tasks", "list").out == (
        "TASK       KIND   WORKERS  DECLARED  QUEUE  TIMEOUT  RETRIES\n"
        "yard.old   sync         1\n"
        "yard.send  async        1\n"
    )


def test_tasks_of_the_application_are_compared_with_those_of_the_workers(
    store: Shell, worker: WorkerThread, here: Path
) -> None:
    (here / "yard.py").write_text(YARD)
    shown = store("tasks", "list", "--app", "yard:app")
    assert (shown.code, shown.err) == (0, "")
    assert [line.split() for line in shown.out.splitlines()[1:]] == [
        ["yard.old", "sync", "1", "no"],
        ["yard.send", "async", "1", "yes", "mail", "30s", "2"],
        ["yard.shrink", "sync", "0", "yes", "default", "varies"],
    ]


def test_without_a_task_anywhere_it_says_how_to_see_some(store: Shell) -> None:
    assert "Name an application with --app" in store("tasks", "list").err
