"""The command ``penstock worker``: what it takes, what it refuses, what it exits with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from cli.conftest import Shell
from penstock import Call, Penstock, logs
from penstock.cli import worker as command
from penstock.cli.program import app
from penstock.core.job import State
from penstock.hosting import WorkerOptions
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervisor.replica_messages import ReplicaSpec
from penstock.worker.supervisor.supervisor import SupervisorSettings

YARD = """
from penstock import Penstock
app = Penstock("sqlite:///jobs.db", priorities={"urgent": -5})
@app.task(queue="mail")
def send(to: str) -> str:
    print(f"sending to {to}\\n", end="", flush=True)  # in one piece: threads print side by side
    return to
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "yard.py").write_text(YARD)
    return tmp_path


def penstock(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=place,
        env={**os.environ, "PENSTOCK_APP": "", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def enqueue(place: Path, *people: str) -> None:
    with Penstock(f"sqlite:///{place}/jobs.db") as yard:
        yard.enqueue_many(Call("yard.send", {"to": name}, {"queue": "mail"}) for name in people)


def test_it_works_until_nothing_is_left(place: Path) -> None:
    enqueue(place, "ada", "bob")
    done = penstock(place, "worker", "yard:app", "--until-empty", "--log-level", "warning")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["sending to ada", "sending to bob"]


def test_the_application_may_come_from_the_environment(place: Path) -> None:
    done = penstock(place, "worker", "--until-empty", PENSTOCK_APP="yard")
    assert done.returncode == 0
    assert "penstock worker ready processes=1 queues=default,mail" in done.stderr
    assert "penstock worker ended succeeded=0 failed=0 retried=0" in done.stderr


def test_lines_of_the_log_may_be_json(place: Path) -> None:
    done = penstock(place, "worker", "yard:app", "--until-empty", "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    loggers = {line["logger"] for line in lines}
    assert {"penstock.supervisor", "penstock.worker"} <= loggers


NOISY = """
import logging, threading, warnings
from penstock import Penstock
app = Penstock("sqlite:///jobs.db")
@app.task(isolation="process" if ISOLATED else None)
def shout() -> None:
    logging.getLogger("yard").debug("quietly")
    warnings.warn("careful")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("is_isolated", [False, True], ids=["thread", "child"])
def test_what_python_says_by_itself_is_json_too_and_children_log_alike(
    place: Path, is_isolated: bool
) -> None:
    (place / "yard.py").write_text(NOISY.replace("ISOLATED", str(is_isolated)))
    with Penstock(f"sqlite:///{place}/jobs.db") as yard:
        yard.enqueue("yard.shout")
    json_debug = ("--log-format", "json", "--log-level", "debug")
    done = penstock(place, "worker", "yard:app", "--until-empty", *json_debug)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (quiet,) = [line for line in lines if line["message"] == "quietly"]
    assert quiet["task"] == "yard.shout"
    assert any("UserWarning: careful" in line["message"] for line in lines)
    (uncaught,) = [line for line in lines if line["message"] == "error ended a thread"]
    assert uncaught["error"] == "ZeroDivisionError: division by zero"
    assert lines[-1]["message"] == "penstock worker ended succeeded=1 failed=0 retried=0"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "<&- >&-"])
def test_streams_may_be_closed(place: Path, closed: str) -> None:
    """As some service managers leave them."""
    enqueue(place, "ada")
    command = f'"{sys.executable}" -m penstock worker yard:app --until-empty {closed}'
    assert subprocess.run(["sh", "-c", command], cwd=place, timeout=100).returncode == 0
    with Penstock(f"sqlite:///{place}/jobs.db") as yard:
        assert [each.state for each in yard.counts()] == [State.SUCCEEDED]


def test_every_option_reaches_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[ReplicaSpec, SupervisorSettings]] = []

    def supervise(spec: ReplicaSpec, settings: SupervisorSettings) -> int:
        heard.append((spec, settings))
        return 0

    monkeypatch.setattr(command, "_supervise", supervise)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    options = (
        *("--queues", "mail,bulk", "--concurrency", "7", "--threads", "3", "--children", "4"),
        *("--processes", "2", "--reserve", "high=1", "--reserve", "urgent=1", "--drain", "1m"),
        *("--grace", "2s", "--lease", "20s", "--name", "east", "--max-jobs", "1000"),
        *("--max-memory", "2GiB", "--stall-limit", "9s", "--hang-limit", "90s", "--no-leads"),
        *("--until-empty", "--log-format", "json", "--log-level", "debug"),
    )
    assert CliRunner().invoke(app, ["worker", "yard:app", *options]).exit_code == 0
    ((spec, settings),) = heard
    assert (spec.app, spec.until_empty) == ("yard:app", True)
    assert (spec.log_format, spec.log_level) == ("json", "debug")
    assert settings == SupervisorSettings(processes=2, hang_limit=90.0)
    shop = Penstock("memory://", priorities={"urgent": -5})
    assert shop._worker(cast(WorkerOptions, dict(spec.options))).settings == WorkerSettings(
        queues=("mail", "bulk"),
        concurrency=7,
        threads=3,
        children=4,
        reserve={0: 1, -5: 1},
        drain=60.0,
        grace=2.0,
        lease=20.0,
        name="east",
        max_jobs=1000,
        max_memory=2 << 30,
        stall_limit=9.0,
        leads=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Error: no application: none is named; write penstock worker module:app, or set PEN"),
        (
            ("yard:app", "--drain", "soon"),
            "'soon' is not a duration: --drain has no number at 'soon'",
        ),
        (("yard:app", "--max-memory", "much"), "--max-memory='much'"),
        (("yard:app", "--processes", "0"), "processes=0: give a whole number from 1"),
        (("yard:app", "--hang-limit", "1s"), "hang_limit=1.0: give at least 10 s"),
        (("yard:app", "--log-format", "xml"), "log_format='xml': give one of text, json"),
        (("yard:app", "--log-level", "loud"), "level='loud': give one of debug, info"),
        (("yard:app", "--threads", "many"), "Invalid value for '--threads'"),
        (("yard:app", "--colour"), "No such option: --colour"),
    ],
)
def test_a_wrong_word_is_refused_with_a_reason(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    if "--log-level" not in arguments:
        monkeypatch.setattr(logs, "configure", lambda *_: None)
    refused = shell("worker", *arguments)
    assert message in refused.err
    assert refused.code == 2
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("yard:app", "--queues", "mail,mail"), "name each queue once"),
        (("yard:app", "--reserve", "soon=2"), "unknown priority 'soon'"),
        (("yard:app", "--reserve", "high"), "reserve='high': give priorities and slots"),
        (("yart:app",), "there is no module 'yart'; did you mean yard?"),
        (("yard:send",), "that is a Task, not a Penstock(...)"),
    ],
)
def test_a_wrong_call_is_refused_with_a_reason(
    place: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = penstock(place, "worker", *arguments)
    assert message in done.stderr
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_application_that_does_not_load_is_shown_where_it_breaks(place: Path) -> None:
    (place / "yard.py").write_text("import json\n\nraise ValueError('no colour')\n")
    done = penstock(place, "worker", "yard:app", "--processes", "3")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: no colour") == 1
    assert 'yard.py", line 3' in done.stderr
    assert "penstock worker ready" not in done.stderr


def test_a_module_that_runs_a_worker_itself_is_refused(place: Path) -> None:
    """It would never be loaded, and its jobs would run without a supervisor."""
    (place / "yard.py").write_text(f"{YARD}\napp.run_worker()\n")
    done = penstock(place, "worker", "yard:app")
    assert done.returncode == 1
    assert "`penstock worker` loads this module, and runs its jobs itself" in done.stderr
    assert "put it under `if __name__ == '__main__':`" in done.stderr


def test_modules_here_do_not_take_the_place_of_those_it_needs_itself(place: Path) -> None:
    """Started as a script, as most people do, it does not look here for its own."""
    for name in ("penstock", "queue", "signal"):
        (place / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    script = "import sys; from penstock.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, "worker", "yard:app", "--until-empty"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_reload_without_its_package_says_what_to_install(place: Path) -> None:
    code = (
        "import sys; sys.modules['watchfiles'] = None; sys.argv[1:] = ['worker', 'yard', "
        "'--reload']; from penstock.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert "pip install 'penstock[reload]'" in done.stderr


def test_ctrl_c_while_the_application_is_loaded_ends_at_once(place: Path) -> None:
    (place / "yard.py").write_text(
        "import pathlib, threading\npathlib.Path('sign').touch()\nthreading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "penstock", "worker", "yard:app"]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE) as process:
        while not (place / "sign").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_help_and_version_are_there(shell: Shell) -> None:
    shown = shell("worker", "--help").out
    for option in ("--queues", "--processes", "--reserve", "--reload", "--until-empty", "SIGHUP"):
        assert option in shown
    assert shell("--version").out.startswith("penstock 0.")
    assert "worker" in shell("--help").out


def test_the_library_does_not_load_the_command(place: Path) -> None:
    code = (
        "import sys, penstock; from penstock import Penstock; Penstock('memory://').worker_thread()"
        "\nprint(sorted({'typer', 'click', 'rich', 'watchfiles'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "[]\n", done.stderr
