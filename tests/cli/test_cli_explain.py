"""``penstock explain``: what it prints, and what it exits with."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Answer, Shell
from penstock import Penstock


@pytest.fixture
def app(tmp_path: Path):
    with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@pytest.fixture
def penstock(shell: Shell) -> Shell:
    """The command, with a store named in the environment."""

    def call(*arguments: str, **environment: str) -> Answer:
        named = {"PENSTOCK_URL": "sqlite:///jobs.db", "PENSTOCK_APP": "", **environment}
        return shell(*arguments, **named)

    return call


def test_it_prints_every_reason_with_its_next_step(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("send", id="hello", queue="mail")
    app.pause("mail", "provider is down")
    done = penstock("explain", "hello")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "job hello of task send in queue mail is ready\n"
        "1. queue 'mail' is paused: provider is down\n"
        "   next: to continue: penstock queues resume mail\n"
        "2. no worker is running: none has a lease\n"
        "   next: start a worker: penstock worker MODULE:APP --queues mail\n"
    )


def test_its_next_steps_look_at_the_same_store(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("send", id="hello", queue="my mail")
    app.pause("my mail")
    done = penstock("explain", "hello", "--url", "sqlite:///jobs.db", PENSTOCK_URL="")
    step = f"penstock queues resume --url sqlite:///{tmp_path}/jobs.db 'my mail'"
    assert f"   next: to continue: {step}\n" in done.out
    words = shlex.split(step)[1:]
    assert penstock(*words, PENSTOCK_URL="").code == 0
    assert not app.queues()["my mail"].paused


def test_it_prints_json(penstock: Shell, app: Penstock, tmp_path: Path) -> None:
    app.enqueue("send", id="hello", delay="1d")
    done = penstock("explain", "hello", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    assert re.fullmatch(instant, found.pop("asked_at"))
    scheduled, no_worker = found.pop("reasons")
    assert re.fullmatch(instant, scheduled.pop("until_at"))
    assert scheduled.pop("text") in found.pop("verdict")
    assert scheduled == {"code": "scheduled", "next_step": None, "since_at": None}
    assert no_worker == {
        "code": "no_worker",
        "text": "no worker is running: none has a lease",
        "next_step": "start a worker: penstock worker MODULE:APP --queues default",
        "since_at": None,
        "until_at": None,
    }
    assert found == {"id": "hello", "state": "scheduled", "task": "send", "queue": "default"}


def test_a_job_that_is_not_there_ends_with_1(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.counts()
    done = penstock("explain", "nobody")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "Error: job nobody: the store does not have this job: it was pruned, purged or never "
        "enqueued here; check the id, and that the code which enqueued the job uses this store "
        "(--app, --url); to keep finished jobs for longer, raise keep_finished\n"
    )
    done = penstock("explain", "nobody", "--json")
    assert (done.code, done.err) == (1, "")
    found = json.loads(done.out)
    assert (found["state"], found["reasons"][0]["code"]) == (None, "gone")


def test_a_store_that_is_not_there_is_not_made(penstock: Shell, tmp_path: Path) -> None:
    done = penstock("explain", "hello")
    assert (done.code, done.out) == (1, "")
    assert "there is no such file" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_watch_that_is_no_duration_ends_with_2(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    app.enqueue("send", id="hello")
    done = penstock("explain", "hello", "--watch", "soon")
    assert done.code == 2
    assert "'soon' is not a duration" in done.err


def test_a_worker_that_was_killed_is_seen_to_be_silent(
    penstock: Shell, app: Penstock, tmp_path: Path
) -> None:
    """A real worker runs a job and is killed; nobody is left to notice but who asks."""
    (tmp_path / "yard.py").write_text(
        "import pathlib, threading\n"
        "from penstock import Penstock\n"
        "app = Penstock('sqlite:///jobs.db')\n"
        "@app.task(name='hang')\n"
        "def hang() -> None:\n"
        "    pathlib.Path('began').touch()\n"
        "    threading.Event().wait()\n"
    )
    app.enqueue("hang", id="hello")
    worker = subprocess.Popen(
        [sys.executable, "-c", "import yard; yard.app.run_worker()"], cwd=tmp_path
    )
    try:
        deadline = 60 * 50
        while not (tmp_path / "began").exists() and (deadline := deadline - 1):
            try:
                worker.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("the worker has ended")
        alive = penstock("explain", "hello", "--watch", "60s", "--json")
        codes = [reason["code"] for reason in json.loads(alive.out)["reasons"]]
        assert codes == ["running"]
    finally:
        worker.kill()
        worker.wait()
    dead = penstock("explain", "hello", "--watch", "1s", "--json")
    found = json.loads(dead.out)
    assert found["reasons"][0]["code"] == "silent"
    assert found["verdict"].startswith("running: no heartbeat from ")
