"""The parts of the demo: its history, its orders, its pictures, its folder."""

from __future__ import annotations

import errno
import os
import shlex
import struct
import sys
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import ErrorRecord, Job, State
from penstock.demo import folder
from penstock.demo.folder import DemoFolder
from penstock.demo.history import JobHistory, next_commands
from penstock.demo.picture import Picture
from penstock.demo.run import ORDERS, opening_jobs, order_jobs
from penstock.errors import EngineFull, EngineReadOnly, EngineUnavailable


def job(state: State = State.READY, **fields: Any) -> Job:
    """A job of the shop as the store may show it."""
    given: dict[str, Any] = {
        "id": "j1",
        "task": "payment.collect",
        "payload": b'{"order":7,"customer":"ada"}',
        "queue": "payments",
        "priority": 0,
        "enqueued_at": 100.0,
        **fields,
    }
    return Job(state=state, **given)


def error(attempt: int, kind: str = "ConnectionError", message: str = "no answer") -> ErrorRecord:
    return ErrorRecord(attempt=attempt, at=100.0 + attempt, kind=kind, message=message)


def told(history: JobHistory, *jobs: Job) -> list[tuple[str, str, str]]:
    return [(entry.kind, entry.what, entry.text) for entry in history.note(jobs)]


WHAT = "payment.collect 7 ada"


def test_each_bad_attempt_is_told_once() -> None:
    history = JobHistory()
    history.add(["j1"])
    waiting = job(State.SCHEDULED, errors=(error(1),), failures=1, run_at=102.0)
    assert told(history, waiting) == [("retry", WHAT, "attempt 1: no answer")]
    assert told(history, waiting) == []
    done = job(State.SUCCEEDED, errors=(error(1),), failures=1, attempt=2, result=b'"paid"')
    assert told(history, done) == [("done", WHAT, "paid at attempt 2")]
    assert (history.open, history.sums["payment.collect", "retried"]) == ({}, 1)


def test_what_happened_between_two_looks_is_told_in_its_order() -> None:
    history = JobHistory()
    errors = (error(1), error(2, "crash", "the worker died during this attempt"))
    kinds = [kind for kind, _, _ in told(history, job(errors=errors, failures=1, crashes=1))]
    assert kinds == ["retry", "crash"]


def test_a_job_that_has_failed_for_good_is_a_dead_letter() -> None:
    history = JobHistory()
    errors = (error(1), error(2))
    failed = job(State.FAILED, errors=errors, failures=2, attempt=2, reason="no answer\nat all")
    assert told(history, failed) == [
        ("retry", WHAT, "attempt 1: no answer"),
        ("failed", WHAT, "for good: no answer"),
    ]
    assert [dead.id for dead in history.dead] == ["j1"]
    assert history.sums["payment.collect", "retried"] == 1
    assert history.queues["payments", State.FAILED] == 1


def test_a_job_for_later_is_told_when_it_is_first_seen() -> None:
    history = JobHistory()
    later = job(State.SCHEDULED, run_at=112.0)
    assert told(history, later) == [("later", WHAT, "due in 12s")]
    assert told(history, later) == []


def test_workers_that_come_and_go_are_told() -> None:
    history = JobHistory()
    assert [entry.kind for entry in history.note_workers({"a": 1, "b": 2}, 0.0)] == ["joined"] * 2
    changed = [(entry.kind, entry.what) for entry in history.note_workers({"b": 2, "c": 3}, 1.0)]
    assert changed == [("gone", "worker 1"), ("joined", "worker 3")]
    assert history.note_workers({"b": 2, "c": 3}, 2.0) == []


def test_a_day_has_everything_that_is_to_be_shown() -> None:
    day = [*opening_jobs(), *(wish for caused in order_jobs(without_end=False) for wish in caused)]
    tasks = {wish.task for wish in day}
    assert tasks == {
        "mail.send",
        "picture.shrink",
        "payment.collect",
        "order.ship",
        "invoice.render",
        "customer.remind",
    }
    assert sum(wish.task == "invoice.render" for wish in day) == 1
    assert len(list(islice(order_jobs(without_end=True), 3 * ORDERS))) == 3 * ORDERS


def test_a_picture_is_a_png_of_its_size() -> None:
    picture = Picture(-0.5, 0.0, 3.0, (5, 7, 3), width=16, height=4)
    rows = [picture.row(number) for number in range(4)]
    assert rows == [picture.row(number) for number in range(4)]
    assert len(set(rows)) > 1
    drawn = picture.png(rows)
    assert drawn.startswith(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    assert struct.unpack("!II", drawn[16:24]) == (16, 4)
    (length,) = struct.unpack("!I", drawn[33:37])
    body = drawn[41 : 41 + length]
    assert zlib.crc32(b"IDAT" + body) == struct.unpack("!I", drawn[41 + length : 45 + length])[0]
    assert zlib.decompress(body) == b"".join(b"\0" + row for row in rows)


@pytest.mark.parametrize(
    "number, kind",
    [
        (errno.ENOSPC, EngineFull),
        (errno.EROFS, EngineReadOnly),
        (errno.EACCES, EngineReadOnly),
        (errno.EIO, EngineUnavailable),
    ],
)
def test_a_temporary_place_that_cannot_be_had_is_a_named_error(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(kind, match=f"^the temporary directory .*{os.strerror(number)}"):
        folder.make(None)


def test_commands_are_written_so_that_a_shell_understands_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = tmp_path / "my python"
    beside.mkdir()
    (beside / "penstock").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    history, where = JobHistory(), DemoFolder(tmp_path / "a folder")
    listed, _, last = (shlex.split(line) for line in next_commands(history, where))
    assert listed == ["my python/penstock", "jobs", "list", "--url", where.url]
    assert last[1] == "top"
    monkeypatch.setenv("PATH", str(beside))
    assert folder.command("top") == "penstock top"
    (beside / "penstock").unlink()
    assert folder.command("top") == f"'{beside}/python' -m penstock top"


def test_the_commands_to_try_are_about_a_dead_letter_that_can_be_corrected() -> None:
    history = JobHistory()
    told(history, job(State.FAILED, id="j0", reason="crashed 3 times", crashes=3))
    told(history, job(State.FAILED, reason="no answer"))
    listed, explained, retried = next_commands(history, DemoFolder(Path("/tmp/x")))
    assert "jobs list --state failed --url sqlite:////tmp/x/jobs.db" in listed
    assert "explain j1 --url" in explained
    assert "jobs retry j1 --url" in retried
