"""The command ``penstock top``: what it shows, and how it leaves the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.terminals import ENTER, Terminal
from penstock import Penstock
from penstock.cli.program import app as command
from penstock.cli.top.live import pause
from penstock.cli.top.panel import Field, Panel, shares
from penstock.cli.top.render import ScreenState, frame
from penstock.cli.top.view import BeatAges, View
from penstock.clock import SystemClock
from penstock.core.job import ErrorRecord, Job, Outcome, OutcomeKind, State
from penstock.engines.reads import Overview
from penstock.engines.records import Ask, Count, QueueSettings, Report, WorkerInfo
from penstock.stores import connect


class Yard:
    """A store with a bit of everything, and nobody at work."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = f"sqlite:///{place}/jobs.db"
        self.app = Penstock(self.url)
        for number in range(3):
            self.app.enqueue("mail.send", {"to": f"{number}"}, queue="mail")
        self.app.enqueue("mail.send", {"to": "later"}, queue="mail", delay="1h")
        self.app.enqueue("label.print", {}, queue="labels")
        self.app.pause("labels", "the printer is on fire")
        self.app.enqueue("picture.shrink", {}, queue="pictures", key="ada")
        self.app.enqueue("order.ship", {}, queue="orders")
        self.app.close()
        asyncio.run(self._work())

    async def _work(self) -> None:
        """As a worker would: run one job, fail another."""
        engine = connect(self.url, SystemClock())
        await engine.open()
        info = WorkerInfo(
            id="crane-4711",
            queues=("orders", "pictures"),
            host="harbour",
            pid=4711,
            slots=10,
            lease=15.0,
        )
        await engine.join(info)
        ask = Ask(worker="crane-4711", queues=("orders", "pictures"), want=2, slots=2)
        jobs = {job.queue: job for job in (await engine.exchange(ask)).jobs}
        drawn, shipped = jobs["pictures"], jobs["orders"]
        report = Report(job=drawn.id, claim=1, fraction=0.5, note="row 96 of 192")
        await engine.exchange(Ask(worker="crane-4711", reports=(report,)))
        why = ErrorRecord(attempt=1, at=0.0, kind="ValueError", message="no address")
        failed = Outcome(
            job=shipped.id,
            claim=1,
            kind=OutcomeKind.FAILED,
            reason="ValueError: no address\nat all",
            error=why,
        )
        await engine.exchange(Ask(worker="crane-4711", outcomes=(failed,)))
        await engine.close()

    def enqueue(self, count: int) -> None:
        for number in range(count):
            self.app.enqueue("mail.send", {"to": f"{number}"}, queue="mail")
        self.app.close()

    def row(self, page: str, first: str) -> list[str]:
        """The words of the line that begins with one."""
        (line,) = [line for line in page.splitlines() if line.startswith(first)]
        return line.split()


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


@pytest.fixture
def top(yard: Yard) -> Iterator[Terminal]:
    terminal = Terminal("top", "--url", yard.url, "--interval", "100ms", NO_COLOR="1")
    yield terminal
    terminal.close()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, ["top", *arguments], catch_exceptions=True)


# --- live ---------------------------------------------------------------------------------------


def test_it_shows_queues_workers_what_runs_and_what_failed(top: Terminal, yard: Yard) -> None:
    top.until("FAILED  ")
    top.until("no address")
    page = top.page
    assert page.splitlines()[0].startswith(f"penstock  {yard.url}"[:30])
    assert yard.row(page, "mail ")[1:6] == ["3", "1", "0", "0", "0"]
    assert yard.row(page, "pictures")[1:6] == ["0", "0", "1", "0", "0"]
    assert yard.row(page, "orders")[1:6] == ["0", "0", "0", "0", "1"]
    assert "labels  paused: the printer is on fire" in page
    assert "━━━━━━━───────  50%   row 96 of 192" in page
    assert "ada" in yard.row(page, "picture.shrink")
    assert yard.row(page, "crane-4711")[1:3] == ["harbour", "4711"]
    assert "1 of 10" in page
    assert yard.row(page, "order.ship")[-3:] == ["ValueError:", "no", "address"]
    assert "rates of the last 10 s" in page.splitlines()[-1]
    assert all(len(line) <= 100 for line in page.splitlines())
    top.press("q")
    assert top.ended() == 0
    assert top.is_given_back()
    assert "\x1b[3" not in top.raw  # no colours


def test_ctrl_c_leaves_the_terminal_as_it_was(top: Terminal) -> None:
    top.until("QUEUE")
    assert not top.is_given_back()
    top.press("\x03")
    assert top.ended() == 130
    assert top.is_given_back()
    assert top.after == ""


def test_a_signal_ends_it_as_well(top: Terminal) -> None:
    top.until("QUEUE")
    os.kill(top.pid, signal.SIGTERM)
    assert top.ended() == 0
    assert top.is_given_back()


def test_what_changes_is_seen_unless_the_screen_is_paused(top: Terminal, yard: Yard) -> None:
    top.until("QUEUE")
    yard.enqueue(4)
    top.until(lambda: yard.row(top.page, "mail ")[1] == "7", "the change")
    top.press("p")
    top.until("PAUSED")
    yard.enqueue(2)
    top.press("\t")
    top.until("tab shows queues")
    assert yard.row(top.page, "mail ")[1] == "7"
    top.press("p")
    top.until(lambda: yard.row(top.page, "mail ")[1] == "9", "the change")


def test_tab_and_arrows_choose_what_is_listed(top: Terminal) -> None:
    top.until("QUEUE")
    top.press("\t")
    top.until("tab shows queues")
    assert "WORKER" not in top.page
    top.press("\x1b[C")
    top.until("tab shows running jobs")
    assert "picture.shrink" in top.page
    assert "QUEUE" not in top.page
    top.press("\x1b[D")
    top.until("tab shows queues")
    top.press("\x1b[Z")
    top.until("tab shows all")
    assert "WORKER" in top.page


def test_arrows_select_a_job_and_e_explains_it(top: Terminal) -> None:
    top.until("QUEUE")
    assert "e explain" not in top.page
    top.press("\x1b[B")
    top.until("e explain  c cancel")
    top.press("e")
    top.until("Explain")
    top.until("has been running")
    assert "QUEUE" not in top.page
    top.press("x")
    top.until("QUEUE")
    top.press("\x1b[B")
    top.press("e")
    top.until("it failed")
    top.until("next: read its errors: penstock jobs show")
    top.press("q")
    top.until("QUEUE")
    top.press("q")
    assert top.ended() == 0
    assert top.is_given_back()


def test_c_cancels_the_selected_job_after_a_question(top: Terminal, yard: Yard) -> None:
    top.until("QUEUE")
    top.press("\x1b[B")
    top.until("c cancel")
    (job,) = yard.app.find(state=State.RUNNING).jobs
    top.press("c")
    top.until(f"Cancel job {job.id}?")
    top.press("n")
    top.until("QUEUE")
    assert yard.app.job(job.id).status().cancel_reason is None
    top.press("c")
    top.until("Cancel job")
    top.press("y")
    top.until("it was asked to stop")
    assert yard.app.job(job.id).status().cancel_reason is not None
    yard.app.close()


def test_a_question_mark_shows_the_keys(top: Terminal) -> None:
    top.until("? help")
    top.press("?")
    top.until("cancel the selected job, after a question")
    top.press("?")
    top.until("QUEUE")


def test_it_fits_when_the_terminal_is_made_smaller(top: Terminal) -> None:
    top.until("rates of the last 10 s")
    top.resize(60, 15)
    top.until(lambda: top.page.splitlines()[-1].startswith("q quit"), "the last line")
    assert top.page.splitlines()[0].endswith("failed/s")
    assert "QUEUE" in top.page
    assert "DONE/S" not in top.page
    assert "ERROR" not in top.page
    top.resize(120, 40)
    top.until(lambda: top.page.splitlines()[-1].endswith("rates of the last 10 s"), "all of it")
    assert "ERROR" in top.page


def test_a_store_that_goes_away_is_told_and_comes_back(top: Terminal, yard: Yard) -> None:
    top.until("QUEUE")
    away = yard.place / "away"
    away.mkdir()
    names = sorted(path.name for path in yard.place.glob("jobs.db*"))
    for name in names:
        (yard.place / name).rename(away / name)
    top.until("looking again: ")
    top.until("there is no such file")
    assert "labels  paused" in top.page  # what was known is still shown
    for name in reversed(names):  # the database itself comes last
        (away / name).rename(yard.place / name)
    top.until(lambda: "looking again" not in top.page, "the store")
    assert not (yard.place / "jobs.db-new").exists()
    yard.enqueue(1)
    top.until(lambda: yard.row(top.page, "mail ")[1] == "4", "the change")


def test_ctrl_z_gives_the_terminal_back_for_a_while(top: Terminal) -> None:
    top.until("QUEUE")
    top.press("\x1a")
    top.until(lambda: _state(top.pid) == "T", "the stop")
    top.until(top.is_given_back, "the page from before")
    os.kill(top.pid, signal.SIGCONT)
    top.until(lambda: top.raw.count(ENTER) == 2, "the second page")
    top.until("QUEUE")
    top.press("q")
    assert top.ended() == 0
    assert top.is_given_back()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_terminal_that_can_only_print_gets_one_screen(yard: Yard) -> None:
    top = Terminal("top", "--url", yard.url, TERM="dumb")
    assert top.ended() == 0
    assert "\x1b" not in top.raw
    assert "paused: the" in top.raw


# --- once, and for programs ---------------------------------------------------------------------


def test_without_a_terminal_it_prints_one_screen(yard: Yard) -> None:
    done = run("--url", yard.url)
    assert (done.exit_code, "\x1b" in done.stdout) == (0, False)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{yard.url}, 20")
    assert lines[1] == "0.0 done/s, 0.1 failed/s over the last 10 s; leader: none"
    assert "labels        1          0        0     0       0   0.1     0.0" in done.stdout
    assert "paused: the printer is on fire" in done.stdout
    assert "crane-4711  harbour  4711  1 of 10" in done.stdout
    assert [line.split()[-1] for line in lines if line.startswith("order.ship")] == ["address"]


def test_json_has_all_of_it(yard: Yard) -> None:
    done = run("--url", yard.url, "--json", "--once")
    shown = json.loads(done.stdout)
    assert (shown["store"], shown["window"], shown["leader"]) == (yard.url, 10.0, None)
    queues = {queue.pop("name"): queue for queue in shown["queues"]}
    assert queues["mail"] == {
        "paused": False,
        "note": None,
        "ready": 3,
        "scheduled": 1,
        "running": 0,
        "held": 0,
        "failed": 0,
        "entered_per_second": 0.4,
        "succeeded_per_second": 0.0,
        "failed_per_second": 0.0,
        "cancelled_per_second": 0.0,
    }
    assert (queues["labels"]["paused"], queues["labels"]["note"]) == (
        True,
        "the printer is on fire",
    )
    (worker,) = shown["workers"]
    assert worker.pop("joined_at").endswith("Z")
    assert worker == {
        "worker": "crane-4711",
        "host": "harbour",
        "pid": 4711,
        "slots": 10,
        "busy": 1,
        "beat": 0,
        "still": None,
    }
    (running,) = shown["running"]
    assert (running["task"], running["key"], running["worker"]) == (
        "picture.shrink",
        "ada",
        "crane-4711",
    )
    assert (running["progress"], running["note"]) == (0.5, "row 96 of 192")
    (failed,) = shown["failed"]
    assert (failed["task"], failed["reason"]) == ("order.ship", "ValueError: no address")


def test_json_goes_on_line_by_line_until_ctrl_c(yard: Yard) -> None:
    arguments = ["top", "--url", yard.url, "--json", "--interval", "100ms"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 130
    assert lines[0]["at"] < lines[1]["at"] < lines[2]["at"]


def test_nothing_is_made_where_there_is_no_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "top", "--url", f"sqlite:///{tmp_path}/none.db"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no store at '{tmp_path}/none.db'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_it_does_not_look_faster_than_is_good(yard: Yard) -> None:
    done = run("--url", yard.url, "--interval", "1ms")
    assert str(done.exception) == "--interval='1ms': give 0.1s or more"


# --- parts --------------------------------------------------------------------------------------


def test_a_slow_look_is_followed_by_a_longer_pause() -> None:
    assert pause(1.0, 0.01) == pytest.approx(0.99)
    assert pause(1.0, 0.5) == pytest.approx(5.0)


def test_a_beat_is_known_once_it_was_seen_to_grow() -> None:
    beats = BeatAges()

    def still(beat: int, now: float) -> float | None:
        info = WorkerInfo(id="w", beat=beat, lease=15.0)
        return beats.note((info,), now)["w"]

    assert still(7, 100) is None
    assert still(7, 103) is None
    assert still(8, 104) == 0
    assert still(8, 106) == 2
    assert still(8, 130) == 26


def test_a_worker_that_is_silent_for_a_lease_is_told_though_it_never_beat() -> None:
    beats = BeatAges()
    info = WorkerInfo(id="w", beat=7, lease=15.0)
    assert beats.note((info,), 100)["w"] is None
    assert beats.note((info,), 115)["w"] is None
    assert beats.note((info,), 116)["w"] == 16


def drawn(view: View, **look: Any) -> str:
    """The frame of a view as text."""
    size = {"width": 100, "height": 30, **look}
    console = Console(width=size["width"], height=size["height"], color_system=None)
    with console.capture() as captured:
        console.print(frame(view, ScreenState(**size)))
    return captured.get()


def job(**fields: Any) -> Job:
    given = {"id": "j", "task": "t", "payload": b"", "queue": "q", "priority": 5}
    return Job(state=State.RUNNING, enqueued_at=0.0, **{**given, **fields})


def test_text_from_a_store_cannot_move_the_cursor() -> None:
    evil = job(key="\x1b[2J", note="\r\n", started=True, progress=0.1)
    view = View("sqlite:///x", Overview(now=0.0, running=(evil,)), 10.0)
    page = drawn(view)
    assert "\\x1b[2J" in page
    assert "\\r\\n" in page
    assert "\x1b" not in page


def test_jobs_that_wait_for_a_slot_come_after_those_that_run() -> None:
    jobs = (job(task="first"), job(task="second", started=True))
    page = drawn(View("sqlite:///x", Overview(now=5.0, running=jobs), 10.0))
    assert page.index("second") < page.index("first") < page.index("waits for a slot")


def test_a_worker_that_is_silent_is_seen_at_once() -> None:
    workers = tuple(WorkerInfo(id=id, lease=15.0) for id in ("new", "old", "dead"))
    view = View(
        "sqlite:///x",
        Overview(now=5.0, workers=workers),
        10.0,
        stillness={"old": 2.0, "dead": 40.0},
    )
    beats = {
        line.split()[0]: line.split()[-2:] for line in drawn(view).splitlines() if line.strip()
    }
    assert beats["old"] == ["2s", "ago"]
    assert beats["dead"] == ["40s", "silent"]
    assert beats["new"][-1] == "-"


def test_at_80_columns_the_ids_and_names_of_running_jobs_are_seen() -> None:
    running = job(id="0123456789abcdef01234567", task="mail.send", name="Welcome Ada", started=True)
    page = drawn(View("sqlite:///x", Overview(now=5.0, running=(running,)), 10.0), width=80)
    (line,) = [line for line in page.splitlines() if line.startswith("mail.send")]
    assert "Welcome Ada" in line
    assert "0123456789abcdef01234567" in line


def test_a_selected_job_is_shown_wherever_it_is_in_the_list() -> None:
    jobs = tuple(job(id=f"job-{number:03}", started=True) for number in range(90))
    view = View("sqlite:///x", Overview(now=5.0, running=jobs), 10.0)
    assert "job-080" not in drawn(view)
    assert "job-080" in drawn(view, selected="job-080")


@pytest.mark.parametrize("width", [40, 50, 59, 60, 68, 79, 80, 200])
def test_a_paused_queue_is_seen_to_be_however_long_its_name(width: int) -> None:
    settings = {"payments": QueueSettings(paused=True), "q" * 200: QueueSettings(paused=True)}
    page = drawn(View("sqlite:///x", Overview(now=0.0, settings=settings), 10.0), width=width)
    rows = [line for line in page.splitlines() if line.startswith(("payments", "qqqq"))]
    assert "payments  paused" in rows[0]
    assert "  paused" in rows[1] or width < 50


def test_many_rows_are_counted_instead_of_shown() -> None:
    counts = tuple(
        Count(queue=f"q{number:02}", priority=5, state=State.READY, hold=None, jobs=1)
        for number in range(50)
    )
    page = drawn(View("sqlite:///x", Overview(now=0.0, counts=counts), 10.0))
    assert "q00" in page
    assert "q49" not in page
    assert re.search(r"^… \d\d more", page, re.M)
    assert len(page.splitlines()) == 30


@pytest.mark.parametrize("width, height", [(20, 4), (40, 10), (60, 15), (80, 24), (200, 60)])
def test_no_frame_is_larger_than_its_terminal(width: int, height: int) -> None:
    jobs = tuple(job(id=f"j{number}", note="n" * 200) for number in range(80))
    trouble = "the store is away, and this takes many words to tell " * 9
    view = View("sqlite:///" + "x" * 300, Overview(now=0.0, running=jobs, failed=jobs), 10.0)
    for said in (None, trouble):
        page = drawn(view, width=width, height=height, trouble=said).splitlines()
        assert max(map(len, page)) <= width
        if height > 10:
            assert len(page) == height


def test_panels_share_the_lines_in_turns() -> None:
    def panel(rows: int) -> Panel:
        return Panel((Field("A"),), [()] * rows, "none")

    assert shares([panel(1), panel(10), panel(10)], 14) == [2, 6, 6]
    assert shares([panel(0), panel(2)], 40) == [2, 3]
