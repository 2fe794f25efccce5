"""``penstock doctor``: what it prints, what it exits with, and real workers that are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Answer, Shell
from penstock import Penstock
from penstock.engines.records import WorkerInfo
from penstock.engines.sqlite.checkup import file_system

YARD = """
import pathlib, threading
from penstock import Penstock
app = Penstock('sqlite:///jobs.db', lease=2)
@app.task(name='hang')
def hang() -> None:
    pathlib.Path('began').touch()
    threading.Event().wait()
"""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Penstock]:
    (tmp_path / "yard.py").write_text(YARD)
    with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@pytest.fixture
def penstock(shell: Shell) -> Shell:
    """The command, with a store named in the environment."""

    def call(*arguments: str, **environment: str) -> Answer:
        named = {"PENSTOCK_URL": "sqlite:///jobs.db", "PENSTOCK_APP": "", **environment}
        return shell("doctor", *arguments, **named)

    return call


async def _join(app: Penstock, worker: WorkerInfo) -> None:
    engine = app._source.connect()
    await engine.open()
    await engine.join(worker)
    await engine.close()


def findings(done: Answer) -> dict[str, dict[str, Any]]:
    """What was found, by check."""
    return {finding["check"]: finding for finding in json.loads(done.out)["findings"]}


def bad(done: Answer) -> set[str]:
    """The checks that found something worse than a note."""
    found = findings(done).values()
    return {each["check"] for each in found if each["level"] in ("warning", "error")}


@pytest.fixture
def on_a_disk(tmp_path: Path) -> None:
    """Only where tests have a disk is there nothing to say of it."""
    if file_system(str(tmp_path)).level.is_bad:
        pytest.skip("the tests do not run on a local disk")


@contextmanager
def busy_worker(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real worker process, while it runs a job that does not end."""
    worker = subprocess.Popen(
        [sys.executable, "-c", "import yard; yard.app.run_worker()"], cwd=place
    )
    try:
        tries = 3000
        while not (place / "began").exists():
            try:
                worker.wait(0.02)
            except subprocess.TimeoutExpired:
                tries -= 1
                assert tries, "it did not begin"
                continue
            raise AssertionError("the worker has ended")
        yield worker
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.usefixtures("on_a_disk")
def test_it_prints_the_worst_first_and_what_to_do(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("send", queue="mail")
    app.pause("mail")
    done = penstock()
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[:2] == [
        "error    workers: no worker is there, and 1 job waits",
        "         next: start a worker: penstock worker MODULE:APP",
    ]
    assert lines[2].startswith("warning  paused: queue 'mail' is paused: 1 job waits")
    assert lines[3] == "         next: when that is over: penstock queues resume mail"
    assert "ok       reach: sqlite file " in done.out
    assert lines[-1].startswith("1 error, 1 warning, ")


def test_its_next_steps_look_at_the_same_store(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("send", queue="mail")
    app.pause("mail")
    resume = "when that is over: penstock queues resume"
    with_url = penstock("--url", "sqlite:///jobs.db", PENSTOCK_URL="sqlite:///other.db")
    assert f"{resume} --url sqlite:///jobs.db mail\n" in with_url.out
    same = penstock("--url", "sqlite:///jobs.db", PENSTOCK_URL="sqlite:///./jobs.db")
    assert f"{resume} mail\n" in same.out


@pytest.mark.usefixtures("on_a_disk")
def test_nothing_worse_than_a_note_ends_with_0(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.counts()
    done = penstock("--json", "--thorough")
    assert (done.code, done.err) == (0, "")
    assert bad(done) == set()
    assert json.loads(done.out)["worst"] == "note"
    assert findings(done)["integrity"] == {
        "check": "integrity",
        "level": "ok",
        "text": "every page of the file is sound",
        "next_step": None,
        "facts": {},
    }
    assert findings(done)["workers"]["facts"] == {"workers": 0, "waiting": 0}


def test_a_store_that_is_not_there_is_a_finding_and_not_made(
    penstock: Shell, tmp_path: Path
) -> None:
    done = penstock("--json")
    assert (done.code, done.err) == (1, "")
    assert bad(done) == {"store"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("on_a_disk")
def test_an_application_is_compared_with_its_store(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("yard.hang")
    for done in (
        penstock("yard:app", "--json"),
        penstock("--json", PENSTOCK_APP="yard", PENSTOCK_URL=""),
    ):
        assert bad(done) == {"workers", "undeclared"}
        assert findings(done)["undeclared"]["next_step"].endswith("it has 'hang': was that meant?")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing:app"], "no application at 'nothing:app'"),
        (["yard:app", "--url", "sqlite:///jobs.db"], "give one of them"),
        (["--url", "memory://"], "it lives in one process"),
        (["--watch", "soon"], "'soon' is no duration"),
    ],
)
def test_it_was_called_in_a_wrong_way(
    penstock: Shell, app, tmp_path: Path, arguments, message
) -> None:
    done = penstock(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.usefixtures("on_a_disk")
def test_a_worker_that_lives_and_one_that_was_killed(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("hang", id="hello")
    with busy_worker(tmp_path):
        done = penstock("yard:app", "--json", "--watch", "60s")
        assert (done.code, bad(done)) == (0, set())
        assert findings(done)["leases"]["level"] == "ok"
        assert findings(done)["leader"]["level"] == "ok"
    done = penstock("--json")
    assert done.code == 1
    silent = findings(done)["leases"]
    assert silent["level"] == "error"
    assert silent["text"].endswith(", with 1 running job")
    assert silent["facts"] == {"workers": 1, "jobs": 1}


def test_a_worker_that_was_stopped(penstock: Shell, app: Penstock, tmp_path: Path) -> None:
    """It is seen to be silent, and to be alive again when it goes on."""
    app.enqueue("hang", id="hello")
    with busy_worker(tmp_path) as worker:
        worker.send_signal(signal.SIGSTOP)
        try:
            # It may have been stopped with the write lock: that is a finding of its own.
            assert {"leases", "lock"} & bad(penstock("--json", "--watch", "2s"))
        finally:
            worker.send_signal(signal.SIGCONT)
        done = penstock("--json", "--watch", "60s")
        assert findings(done)["leases"]["level"] == "ok"


@pytest.mark.usefixtures("on_a_disk")
def test_a_repair_lifts_what_has_no_cause(penstock: Shell, app: Penstock, tmp_path: Path) -> None:
    """A hold is left by hand, as by a worker that died when it had joined with the task."""
    app.enqueue("send", id="hello")
    asyncio.run(_join(app, WorkerInfo(id="w", queues=("default",), tasks=("send",))))
    app.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
        other.execute("UPDATE job SET hold = 'unknown_task' WHERE id = 'hello'")
    found = findings(penstock("--json"))
    assert found["repair"]["text"] == "found 1 hold without a cause"
    assert found["repair"]["level"] == "warning"
    found = findings(penstock("--json", "--repair"))
    assert found["repair"]["text"] == "repaired 1 hold without a cause"
    assert app.job("hello").status().hold is None
