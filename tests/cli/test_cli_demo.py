"""The command ``penstock demo``: the whole show, and every way to leave it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.terminals import PATIENCE, Terminal, processes_of
from penstock.cli.program import run

PENSTOCK = (sys.executable, "-m", "penstock")
STOPPED = "Stopped. Its files are deleted."


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """What the demo takes for the place of temporary folders."""
    place = tmp_path / "tmp"
    place.mkdir()
    return place


@pytest.fixture
def show(temporary: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts a demo in a terminal."""
    started: list[Terminal] = []

    def start(*arguments: str, **more: Any) -> Terminal:
        terminal = Terminal("demo", *arguments, TMPDIR=str(temporary), **more)
        started.append(terminal)
        return terminal

    yield start
    for terminal in started:
        terminal.close()


def url_in(text: str) -> str:
    """The store that a demo has told of."""
    found = re.search(r"on (sqlite:///\S+?/jobs\.db)", text)
    assert found is not None, text
    return found[1]


def nobody_is_left(url: str) -> bool:
    """No process of a demo remains."""
    deadline = time.monotonic() + PATIENCE
    while processes_of(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# --- to its end ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_ends_by_itself_though_a_worker_is_killed_and_says_what_to_try(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    killed = False
    with subprocess.Popen(
        [*PENSTOCK, "demo", "--keep", str(folder)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_URL": "sqlite:////nowhere/jobs.db", "PENSTOCK_THREADS": "x"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if not killed and "is running jobs" in line:
                killed = True
                os.kill(int(line.split()[3]), signal.SIGKILL)
        told = process.stderr.read()
    assert (process.wait(), told) == (0, "")
    text = "\n".join(lines)
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text) is None
    sums = {line.split()[0]: line.split()[1:] for line in lines if re.match(r"\w+\.\w+ +\d", line)}
    assert sums["mail.send"][:2] == ["38", "38"]
    assert sums["picture.shrink"][:2] == ["10", "10"]
    assert sums["payment.collect"][:2] == ["20", "20"]
    assert int(sums["payment.collect"][2]) > 0
    assert sums["customer.remind"][:2] == ["2", "2"]
    assert sums["order.ship"][-1] == "1"
    assert sums["invoice.render"] == ["1", "0", "0", "3", "1"]
    assert "  order.ship 1013, " in text
    assert ": ValueError: order 1013 has no address" in text
    assert sum(line.split()[1:3] == ["joined", "worker"] for line in lines) >= 4
    assert len(list((folder / "pictures").glob("*.png"))) == 10
    assert nobody_is_left(url_in(text))
    commands = [line.strip() for line in lines[lines.index("Try next:") + 1 :]]
    assert len(commands) == 3
    outputs = [_typed(command, tmp_path) for command in commands]
    assert "order.ship" in outputs[0]
    assert "invoice.render" in outputs[0]
    assert "1013 has no address" in outputs[1]


def _typed(command: str, place: Path) -> str:
    """What a shell shows when a person copies a command."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=place, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done
    return done.stdout


def test_on_a_terminal_it_is_drawn_and_q_sums_it_up(show: Callable[..., Terminal]) -> None:
    demo = show()
    demo.until("QUEUE")
    assert "Penstock demo  the background jobs of a small shop" in demo.page
    demo.until(
        lambda: re.search(r"picture\.shrink .*━.* \d+%   .*row \d+ of 192", demo.page), "bar"
    )
    demo.until(lambda: re.search(r"^demo-\d+-\w+ .* \d of 10", demo.page, re.M), "a worker")
    assert re.search(r"kill -9 \d+$", demo.page.splitlines()[-1])
    demo.until("for good: ValueError: order 1013 has no address")
    assert all(len(line) <= 100 for line in demo.page.splitlines())
    demo.press("q")
    assert demo.ended() == 0
    assert demo.is_given_back()
    assert "more are waiting in the store." in demo.after
    dead = r"order\.ship 1013, \d attempts: ValueError: order 1013 has no address"
    assert re.search(dead, demo.after)
    assert demo.after.index("Try next:") > demo.after.index("Everything is kept in")
    assert nobody_is_left(url_in(demo.raw))


# --- Ctrl-C -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["Penstock demo:", "QUEUE", "picture.shrink"])
def test_ctrl_c_leaves_nothing_behind(
    show: Callable[..., Terminal], temporary: Path, sign: str
) -> None:
    demo = show(columns=60, lines=15)
    demo.until(lambda: sign in demo.raw, sign)
    if sign == "picture.shrink":
        demo.until(lambda: re.search(r"━ .*%|━+.* \d+%", demo.page), "progress")
        assert demo.page.splitlines()[-1] == "q or Ctrl-C stops it now"
    demo.press("\x03" * (3 if sign == "picture.shrink" else 1))
    assert demo.ended() == 130
    after = demo.after if "QUEUE" in demo.raw else demo.raw.replace("\r\n", "\n")
    lines = [line for line in after.replace("^C", "").splitlines() if line]
    assert lines[-1] == STOPPED
    assert [line for line in lines if not line.startswith("Penstock demo:")] == [STOPPED]
    assert "Traceback" not in demo.raw
    assert "QUEUE" not in demo.raw or demo.is_given_back()
    assert nobody_is_left(url_in(demo.raw))
    assert list(temporary.iterdir()) == []


def test_it_stays_until_ctrl_c_and_so_does_what_was_done(
    show: Callable[..., Terminal], temporary: Path
) -> None:
    demo = show("--stay")
    demo.until(lambda: re.search(r"^mail +\d+ +\d+ +\d+ +[1-9]", demo.page, re.M), "a sent mail")
    url = url_in(demo.raw)
    demo.press("\x03")
    assert demo.ended() == 130
    (folder,) = temporary.iterdir()
    assert demo.after.strip() == f"Stopped. The store is kept in {folder}"
    assert nobody_is_left(url)
    listed = subprocess.run(
        [*PENSTOCK, "jobs", "list", "--state", "running", "--url", url, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert listed.returncode == 0
    assert "picture" not in listed.stdout  # what ran was given back


def test_a_terminal_that_is_closed_ends_it(show: Callable[..., Terminal]) -> None:
    demo = show()
    demo.until("picture.shrink")
    demo.hang_up()
    assert nobody_is_left(url_in(demo.raw))


# --- other ends ---------------------------------------------------------------------------------


def test_sigterm_ends_it_without_a_terminal(temporary: Path) -> None:
    with subprocess.Popen(
        [*PENSTOCK, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = url_in(process.stdout.readline())
        assert "customer.remind zoe" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.stderr.read() == f"{STOPPED}\n"
        assert process.wait(PATIENCE) == 143
    assert nobody_is_left(url)
    assert list(temporary.iterdir()) == []


def test_workers_of_a_demo_that_was_killed_end_by_themselves(temporary: Path) -> None:
    with subprocess.Popen(
        [*PENSTOCK, "demo"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        url = url_in(process.stdout.readline())
        while "is running jobs" not in process.stdout.readline():
            pass
        process.kill()
    assert nobody_is_left(url)


def test_who_reads_no_more_ends_it_in_silence(temporary: Path) -> None:
    script = '{ "$0" -m penstock demo; echo $? >&2; } | head -n 3'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.stderr == "141\n"
    assert len(done.stdout.splitlines()) == 3
    assert nobody_is_left(url_in(done.stdout))
    assert list(temporary.iterdir()) == []


def test_processes_that_cannot_be_started_end_it_with_the_place_of_the_reason(
    temporary: Path,
) -> None:
    script = (
        "import sys; from multiprocessing.spawn import set_executable; "
        "from penstock.cli.program import run; import penstock.demo.run as demo; "
        "demo.START_TIMEOUT = 0.5; set_executable('/nowhere/python'); sys.exit(run(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    found = re.search(r"no worker process has started; they say why in (\S+)", done.stderr)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert found is not None, done.stderr
    assert Path(found[1]).exists()


def test_a_folder_that_has_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").touch()
    for keep, why in (
        (tmp_path, "something is in it already; name a new folder, or empty this one"),
        (tmp_path / "mine.txt", "this is a file; name a new folder"),
    ):
        assert run(["demo", "--keep", str(keep)]) == 2
        assert capsys.readouterr() == ("", f"Error: --keep='{keep}': {why}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
