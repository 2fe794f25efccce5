"""How a command ends when its surroundings do: pipes, files, terminals, the keys of a person."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pexpect
import pytest

from penstock import Call, Penstock

PATIENCE = 60
PENSTOCK = [sys.executable, "-m", "penstock"]
URL = "sqlite:///jobs.db"
NOTHING: Mapping[str, str] = MappingProxyType({})


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many jobs, to copy."""
    path = tmp_path_factory.mktemp("full") / "jobs.db"
    with Penstock(f"sqlite:///{path}") as app:
        app.enqueue_many(
            Call("shop.send", {"to": "žluťoučký 🐎"}, {"id": f"job-{number:04}", "key": "日本"})
            for number in range(2000)
        )
    return path


@pytest.fixture
def place(tmp_path: Path, full: Path) -> Path:
    """A directory with a store of many jobs."""
    for file in full.parent.glob("jobs.db*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**kept, "PENSTOCK_URL": URL, "PENSTOCK_APP": "", "TERM": "xterm-256color", **changes}


def run(
    place: Path, *arguments: str, stdin: str = "", **changes: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*PENSTOCK, *arguments],
        cwd=place,
        env=environment(**changes),
        input=stdin.encode(),
        capture_output=True,
        timeout=PATIENCE,
    )


def in_shell(place: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of sh in which $penstock is the command."""
    return subprocess.run(
        ["sh", "-c", line],
        cwd=place,
        env=environment(penstock=" ".join(PENSTOCK)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


class Terminal:
    """A command on a terminal of its own."""

    def __init__(
        self, place: Path, *arguments: str, columns: int = 80, changes: Mapping[str, str] = NOTHING
    ) -> None:
        self._process: pexpect.spawn[str] = pexpect.spawn(
            PENSTOCK[0],
            [*PENSTOCK[1:], *arguments],
            cwd=str(place),
            env=environment(**changes),
            dimensions=(24, columns),
            encoding="utf-8",
            timeout=PATIENCE,
        )
        self.said = ""

    def expect(self, text: str) -> None:
        self._process.expect_exact(text)
        self.said += (self._process.before or "") + text

    def type(self, keys: str) -> None:
        self._process.send(keys)

    def end(self) -> tuple[int | None, str]:
        """The exit code, and everything that was on the screen."""
        self.said += self._process.read()
        self._process.close()
        return self._process.exitstatus, self.said.replace("\r\n", "\n")


# --- pipes and files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "jobs list --all",
        "jobs list --all --json",
        "jobs show job-0001",
        "--help",
        "enqueue shop.send - < lines",
    ],
)
def test_a_reader_that_goes_away_ends_it_in_silence(place: Path, command: str) -> None:
    """As a program that SIGPIPE ends: 141, which a shell shows for that signal."""
    (place / "lines").write_text("{}\n" * 5000)
    # The reader is gone before anything is written, whoever is quicker.
    line = f"{{ until test -e gone; do :; done; $penstock {command}; echo $? >code; }}"
    done = in_shell(place, f"{line} | {{ exec <&-; touch gone; }}; cat code")
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_reader_that_has_read_enough_is_no_trouble(place: Path) -> None:
    done = in_shell(place, "$penstock jobs list --all | head -n 2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:2] == ["job-1999", "ready"]


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(place: Path, closed: str) -> None:
    assert in_shell(place, f"$penstock jobs list {closed}").returncode == 0
    assert in_shell(place, f"$penstock jobs cancel - {closed}").returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_disk_that_is_full_is_an_error(place: Path) -> None:
    done = in_shell(place, "$penstock jobs list --all >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_message_that_cannot_be_written_stops_nothing(place: Path) -> None:
    assert in_shell(place, "$penstock queues pause mail 2>/dev/full").returncode == 0
    assert in_shell(place, "$penstock jobs show nobody 2>/dev/full").returncode == 1
    with Penstock(f"sqlite:///{place}/jobs.db") as app:
        assert app.queues()["mail"].paused


@pytest.mark.parametrize("arguments", [("jobs", "list", "--json"), ("jobs", "show", "job-0001")])
def test_text_that_the_encoding_does_not_have_is_written_as_escapes(
    place: Path, arguments: tuple[str, ...]
) -> None:
    done = run(place, *arguments, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr.decode().partition("More")[0]) == (0, "")
    text = done.stdout.decode("ascii")
    if "--json" in arguments:
        assert json.loads(text)["jobs"][0]["payload"] == {"to": "žluťoučký 🐎"}
    else:
        assert r"\u017elu\u0165ou\u010dk\xfd \U0001f40e" in text


def test_a_plain_locale_is_no_obstacle(place: Path) -> None:
    done = run(place, "jobs", "show", "job-0001", LC_ALL="C", LANG="C", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_is_no_terminal_gets_no_colour_and_no_cut(place: Path) -> None:
    done = run(place, "jobs", "list", "--limit", "5", FORCE_COLOR="1", COLUMNS="20")
    assert b"\x1b" not in done.stdout
    assert done.stdout.splitlines()[1].split()[:3] == [b"job-1999", b"ready", b"shop.send"]


# --- terminals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_table_fits_the_terminal(place: Path, columns: int) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    code, said = Terminal(place, "jobs", "list", "--limit", "3", columns=columns).end()
    rows = [Text.from_ansi(line).plain for line in said.splitlines()[:4]]
    assert code == 0
    assert [row.split()[0] for row in rows] == ["ID", "job-1999", "job-1998", "job-1997"]
    assert all(cell_len(row.rstrip()) <= columns for row in rows)
    assert ("KEY" in rows[0]) == (columns >= 80)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_switched_off(place: Path, name: str, value: str) -> None:
    with Penstock(f"sqlite:///{place}/jobs.db") as app:
        app.cancel("job-1999")
    with_colour = Terminal(place, "jobs", "list", "--state", "cancelled").end()[1]
    without = Terminal(place, "jobs", "list", "--state", "cancelled", changes={name: value}).end()[
        1
    ]
    assert "\x1b[35mcancelled\x1b[0m" in with_colour
    assert "\x1b[3" not in without


def test_it_asks_with_the_number_and_takes_no_for_an_answer(place: Path) -> None:
    terminal = Terminal(place, "jobs", "cancel", "--all")
    terminal.expect("Cancel 2,000 jobs? [y/N] ")
    terminal.type("\n")
    code, said = terminal.end()
    assert code == 1
    assert said.endswith("Nothing was changed.\n")
    with Penstock(f"sqlite:///{place}/jobs.db") as app:
        assert app.count(state="ready") == 2000


def test_yes_goes_on_with_a_bar_that_goes_away(place: Path) -> None:
    terminal = Terminal(place, "jobs", "purge", "--key", "日本")
    terminal.expect("Delete 2,000 jobs? [y/N] ")
    terminal.type("yes\n")
    terminal.expect("Deleting")
    code, said = terminal.end()
    assert code == 0
    assert said.endswith("2,000 jobs deleted.\n")


def test_the_end_of_the_input_is_no_answer(place: Path) -> None:
    terminal = Terminal(place, "jobs", "purge", "--all")
    terminal.expect("[y/N] ")
    terminal.type("\x04")
    code, said = terminal.end()
    assert code == 1
    assert said.endswith("Nothing was changed.\n")


# --- Ctrl-C -------------------------------------------------------------------------------------


def test_ctrl_c_at_a_question_ends_it(place: Path) -> None:
    terminal = Terminal(place, "jobs", "purge", "--all")
    terminal.expect("[y/N] ")
    terminal.type("\x03")
    code, said = terminal.end()
    assert code == 130
    assert "Traceback" not in said
    with Penstock(f"sqlite:///{place}/jobs.db") as app:
        assert app.count() == 2000


def test_ctrl_c_while_it_waits_for_a_result_leaves_the_job(place: Path) -> None:
    terminal = Terminal(place, "enqueue", "shop.send", "--id", "mine", "--wait")
    terminal.expect("Waiting for job mine; Ctrl-C stops waiting, the job continues.")
    terminal.type("\x03")
    code, said = terminal.end()
    assert code == 130
    assert "Traceback" not in said
    with Penstock(f"sqlite:///{place}/jobs.db") as app:
        assert app.job("mine").status().state == "ready"


def test_ctrl_c_while_it_reads_its_input_ends_it(place: Path) -> None:
    terminal = Terminal(place, "enqueue", "shop.send", "-", "--json")
    terminal.type('{"to": "ada"}\n' * 1000)
    terminal.expect('"created":true')
    terminal.type("\x03")
    code, said = terminal.end()
    assert code == 130
    assert "Traceback" not in said


@pytest.mark.parametrize("command", [PENSTOCK, [str(Path(sys.executable).with_name("penstock"))]])
def test_ctrl_c_while_it_is_loaded_ends_it_in_silence(tmp_path: Path, command: list[str]) -> None:
    hang = "import pathlib, threading\npathlib.Path('sign').touch()\nthreading.Event().wait()\n"
    (tmp_path / "typer.py").write_text(hang)
    assert interrupted(tmp_path, [*command, "jobs", "list"]) == (130, b"", b"")


def test_ctrl_c_when_all_is_done_ends_it_in_silence(tmp_path: Path) -> None:
    (tmp_path / "yard.py").write_text(
        "import atexit, pathlib, threading\n"
        "from penstock import Penstock\n"
        "app = Penstock()\n"
        "atexit.register(threading.Event().wait)\n"
        "atexit.register(pathlib.Path('sign').touch)\n"
    )
    command = [*PENSTOCK, "enqueue", "x", "--app", "yard:app"]
    code, out, err = interrupted(tmp_path, command)
    assert (code, out) == (130, b"")
    assert err.startswith(b"Error: task='x': yard:app has no such task;")
    assert err.count(b"\n") == 1


def interrupted(place: Path, command: list[str]) -> tuple[int, bytes, bytes]:
    """How a command ends when Ctrl-C comes as soon as there is a file ``sign``."""
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment(PYTHONPATH=str(place)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not (place / "sign").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err
