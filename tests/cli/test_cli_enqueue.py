"""``penstock enqueue``: jobs from a shell, one or a whole file of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Shell
from penstock import Call, Handle, Penstock
from penstock.cli import enqueue as command
from penstock.errors import EngineTimeout

YARD = """
from penstock import Penstock
app = Penstock("sqlite:///jobs.db", priorities={"urgent": -5})
@app.task(name="yard.send", queue="mail")
def send(to: str, count: int = 1) -> list[str]:
    if to == "nobody":
        raise ValueError("no such address")
    return [to] * count
"""


@pytest.fixture
def url(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///jobs.db")
    return "sqlite:///jobs.db"


@pytest.fixture
def yard(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "yard", raising=False)
    (tmp_path / "yard.py").write_text(YARD)
    return tmp_path


def test_the_id_of_the_job_is_printed(shell: Shell, url: str) -> None:
    stored = shell("enqueue", "shop.send")
    (id,) = stored.out.split()
    assert (stored.code, stored.err) == (0, "")
    assert shell("jobs", "show", id, "--json").document["task"] == "shop.send"


def test_what_was_stored_is_one_document(shell: Shell, url: str) -> None:
    first = shell("enqueue", "shop.send", "--id", "a", "--json")
    assert first.document == {"id": "a", "created": True, "because": None}
    again = shell("enqueue", "shop.send", "--id", "a", "--json")
    assert (again.code, again.err) == (0, "")
    assert again.document == {"id": "a", "created": False, "because": "id"}


def test_that_the_job_was_there_already_is_said(shell: Shell, url: str) -> None:
    shell("enqueue", "shop.send", "--id", "a", "--unique", "u")
    same = shell("enqueue", "shop.send", "--id", "a")
    taken = shell("enqueue", "shop.send", "--unique", "u")
    assert (same.code, same.out, taken.code, taken.out) == (0, "a\n", 0, "a\n")
    assert same.err == "Job a already exists with the same id.\n"
    assert taken.err == "Job a already exists with the same unique key.\n"


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        ((), {}),
        (('{"to": "ada", "deep": [1, {"a": null}]}',), {"to": "ada", "deep": [1, {"a": None}]}),
        (("to=ada", "note=a=b c", "empty="), {"to": "ada", "note": "a=b c", "empty": ""}),
        (("count:=3", "on:=true", 'who:={"a": "ü"}'), {"count": 3, "on": True, "who": {"a": "ü"}}),
        (("zip=00123",), {"zip": "00123"}),
        (("a::=1",), {"a:": 1}),
    ],
)
def test_arguments_are_written_as_json_or_one_by_one(
    shell: Shell, url: str, words: tuple[str, ...], payload: dict[str, object]
) -> None:
    shell("enqueue", "shop.send", *words, "--id", "a")
    assert shell("jobs", "show", "a", "--json").document["payload"] == payload


def test_every_option_reaches_the_job(shell: Shell, url: str) -> None:
    stored = shell(
        *("enqueue", "shop.send", "--queue", "mail", "--priority", "-7", "--delay", "1h"),
        *("--expires-in", "2h", "--key", "acme", "--id", "a", "--unique", "u"),
        *("--unique-until", "start", "--unique-for", "1d", "--at-most-once", "--tag", "x"),
        *("--tag", "y", "--name", "welcome", "--correlation-id", "c"),
    )
    assert stored.code == 0, stored.err
    job = shell("jobs", "show", "a", "--json").steady
    expected = {
        "queue": "mail",
        "priority": -7,
        "state": "scheduled",
        "key": "acme",
        "unique": "u",
        "unique_until": "start",
        "at_most_once": True,
        "tags": ["x", "y"],
        "name": "welcome",
        "correlation_id": "c",
        "run_at": "TIME",
        "expires_at": "TIME",
    }
    assert {name: job[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2100-01-02T03:04:05+01:00", "2100-01-02T02:04:05.000000Z"),
        ("2100-01-02 03:04", "2100-01-02T03:04:00.000000Z"),
    ],
)
def test_a_job_may_wait_for_a_time(shell: Shell, url: str, text: str, instant: str) -> None:
    shell("enqueue", "shop.send", "--run-at", text, "--id", "a")
    assert shell("jobs", "show", "a", "--json").document["run_at"] == instant


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("x", "ada"),
            "x: 'ada' is not an argument; give one JSON object, or NAME=TEXT and "
            "NAME:=JSON one by one",
        ),
        (
            ("x", "=1"),
            "x: '=1' is not an argument; give one JSON object, or NAME=TEXT and NAME:=JSON",
        ),
        (("x", "a=1", "a:=2"), "x: 'a' is given twice"),
        (("x", "[1]"), "x: '[1]' is not a JSON object; name the arguments"),
        (("x", "{to: 1}"), "x: '{to: 1}' is not valid JSON: JSON is malformed: "),
        (("x", "a:=1x"), "x: 'a:=1x' is not valid JSON: JSON is malformed: "),
        (("x", "--priority", "soon"), "unknown priority 'soon'; use one of high, normal, low"),
        (("x", "--delay", "soon"), "'soon' is not a duration: delay has no number at 'soon'"),
        (("x", "--run-at", "soon"), "run_at='soon': give a date and time, such as 2026-11-16T03:"),
        (("x", "--unique-until", "end", "--unique", "u"), "unique_until='end': give 'done' or 's"),
        (("x", "--timeout", "5s"), "--timeout needs --wait"),
        (("-", "a=1"), "with - the arguments come from the input; give none on the command line"),
        (
            ("x", "--url", "postgresql+psycopg://app@db/shop"),
            "'postgresql+psycopg://app@db/shop' names a driver, which Penstock chooses itself; "
            "write 'postgresql://app@db/shop'",
        ),
        (("x", "--app", "nowhere:app"), "no application at 'nowhere:app': there is no module 'no"),
        (("",), "task='': it is empty; give at least one character"),
    ],
)
def test_a_wrong_call_is_refused_with_a_reason(
    shell: Shell, url: str, arguments: tuple[str, ...], message: str
) -> None:
    refused = shell("enqueue", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"Error: {message}")
    assert refused.err.count("\n") == 1


# --- with an application ------------------------------------------------------------------------


def test_an_application_checks_the_call_and_adds_its_options(shell: Shell, yard: Path) -> None:
    stored = shell(
        *("enqueue", "yard.send", "to=ada", "count:=2", "--app", "yard:app"),
        *("--priority", "urgent", "--id", "a"),
    )
    assert (stored.code, stored.err) == (0, "")
    job = shell("jobs", "show", "a", "--json", "--url", "sqlite:///jobs.db").document
    assert (job["queue"], job["priority"], job["payload"]) == (
        "mail",
        -5,
        {"to": "ada", "count": 2},
    )
    refused = shell("enqueue", "yard.send", "colour=red", "--app", "yard:app")
    assert refused.code == 2
    assert refused.err.startswith("Error: yard.send: ")


def test_the_application_may_come_from_the_environment(
    shell: Shell, yard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", "yard:app")
    assert shell("enqueue", "yard.send", "--id", "a").code == 2
    assert shell("enqueue", "yard.send", "--url", "sqlite:///jobs.db").code == 0


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("yard.sned", "did you mean yard.send? "),
        ("sned", "did you mean yard.send? "),
        ("send", "did you mean yard.send? "),
        ("zzz", ""),
    ],
)
def test_a_task_that_the_application_does_not_have_is_refused(
    shell: Shell, yard: Path, task: str, hint: str
) -> None:
    """Its job would wait for ever; who means the task of another says so with --url."""
    why = f"task={task!r}: yard:app has no such task; {hint}to store a job by name "
    refused = shell("enqueue", task, "--app", "yard:app")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == f"Error: {why}without this check, give --url alone\n"
    lines = f'{{"task": "yard.send", "args": {{"to": "a"}}}}\n{{"task": "{task}"}}\n'
    refused = shell("enqueue", "-", "--app", "yard:app", stdin=lines)
    assert (refused.code, refused.out) == (2, "")
    why += "without this check, give --url alone"
    assert refused.err == f"Error: line 2 is wrong: {why}\nNo jobs are stored.\n"
    assert shell("enqueue", task, "--url", "sqlite:///jobs.db").code == 0


def test_an_application_without_tasks_takes_no_jobs(shell: Shell, yard: Path) -> None:
    (yard / "yard.py").write_text("from penstock import Penstock\napp = Penstock()\n")
    refused = shell("enqueue", "send", "--app", "yard:app")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("Error: task='send': yard:app has no such task; to store a job")


def test_what_an_application_prints_is_not_among_the_data(shell: Shell, yard: Path) -> None:
    (yard / "yard.py").write_text(f"print('hello')\n{YARD}")
    stored = shell("enqueue", "yard.send", "to=ada", "--id", "a", "--app", "yard:app", "--json")
    assert (stored.code, stored.err) == (0, "hello\n")
    assert stored.document == {"id": "a", "created": True, "because": None}


def test_the_result_is_waited_for(shell: Shell, yard: Path) -> None:
    shell("enqueue", "yard.send", "to=ada", "count:=2", "--app", "yard:app", "--id", "a")
    with Penstock("sqlite:///jobs.db") as app:

        @app.task(name="yard.send", queue="mail", retries=0)
        def send(to: str, count: int = 1) -> list[str]:
            if to == "nobody":
                raise ValueError("no such address")
            return [to] * count

        with app.worker_thread():
            call = ("enqueue", "yard.send", "--app", "yard:app", "--wait", "--timeout", "60s")
            known = shell(*call, "--id", "a", "to=ada")
            listed = shell(*call, "to=bob", "--id", "b", "--json")
            failed = shell(*call, "to=nobody", "--id", "c")
            many = shell(
                *("enqueue", "yard.send", "-", "--app", "yard:app", "--wait", "--json"),
                stdin='{"to": "x"}\n{"to": "y"}\n',
            )
    assert (known.code, known.out) == (0, '[\n  "ada",\n  "ada"\n]\n')
    assert known.err == (
        "Job a already exists with the same id.\n"
        "Waiting for job a; Ctrl-C stops waiting, the job continues.\n"
    )
    assert listed.document == {"id": "b", "created": True, "because": None, "result": ["bob"]}
    assert (failed.code, failed.out) == (1, "")
    assert "Error: job c failed: ValueError: no such address\n\nTraceback (most" in failed.err
    assert [json.loads(line)["result"] for line in many.out.splitlines()] == [["x"], ["y"]]


def test_a_result_that_does_not_come_in_time_is_no_success(shell: Shell, url: str) -> None:
    late = shell("enqueue", "x", "--id", "a", "--wait", "--timeout", "10ms")
    assert (late.code, late.out) == (1, "")
    assert "Error: job a is still ready after 0.01 s; it goes on" in late.err


# --- lines --------------------------------------------------------------------------------------


def test_each_line_is_the_arguments_of_a_job(shell: Shell, url: str) -> None:
    stored = shell("enqueue", "shop.send", "-", "--queue", "mail", stdin='{"n": 1}\n\n{"n": 2}')
    ids = stored.out.split()
    jobs = [shell("jobs", "show", id, "--json").document for id in ids]
    assert (stored.code, stored.err) == (0, "")
    assert [(job["queue"], job["payload"]) for job in jobs] == [
        ("mail", {"n": 1}),
        ("mail", {"n": 2}),
    ]


def test_each_line_may_name_its_task_and_options(shell: Shell, url: str) -> None:
    lines = (
        '{"task": "a", "args": {"n": 1}, "id": "one", "tags": ["x"], "priority": "high"}\n'
        '{"task": "b", "id": "two", "run_at": "2100-01-01T00:00Z", "queue": "own"}\n'
    )
    stored = shell("enqueue", "-", "--queue", "mail", "--json", stdin=lines)
    assert [json.loads(line) for line in stored.out.splitlines()] == [
        {"id": "one", "created": True, "because": None},
        {"id": "two", "created": True, "because": None},
    ]
    one = shell("jobs", "show", "one", "--json").document
    two = shell("jobs", "show", "two", "--json").document
    assert (one["task"], one["queue"], one["tags"], one["priority"]) == ("a", "mail", ["x"], 0)
    assert (two["payload"], two["queue"], two["state"]) == ({}, "own", "scheduled")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "a line: '[]' is not a JSON object; name the arguments"),
        ("{", "a line: '{' is not valid JSON: Input data was truncated; give one JSON object, or"),
        (
            '{"args": {}}',
            'a line: it does not name a task; write {"task": "shop.send", "args": {...}}',
        ),
        ('{"task": "a", "args": [1]}', "a: args must be a JSON object, not [1]"),
        ('{"task": "a", "colour": "red"}', "colour='red': no such option; there are queue, prio"),
        (
            '{"task": "a", "delay": "soon"}',
            "'soon' is not a duration: delay has no number at 'soon'",
        ),
    ],
)
def test_a_wrong_line_stores_nothing_of_its_batch(
    shell: Shell, url: str, line: str, message: str
) -> None:
    refused = shell("enqueue", "-", stdin=f'{{"task": "good"}}\n\n{line}\n{{"task": "good"}}\n')
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"Error: line 3 is wrong: {message}")
    assert refused.err.endswith("\nNo jobs are stored.\n")


def test_how_many_jobs_a_wrong_line_leaves_stored_is_said(shell: Shell, url: str) -> None:
    refused = shell("enqueue", "x", "-", stdin="{}\n" * 1500 + "[]\n")
    assert refused.code == 2
    assert refused.err.startswith("Error: line 1501 is wrong: x: '[]' is not a JSON object;")
    assert refused.err.endswith(
        "\n1,000 jobs are stored, up to line 1000; to continue, skip them: tail -n +1001\n"
    )
    assert len(refused.out.split()) == 1000
    counted = shell("jobs", "cancel", "--all", "--dry-run", "--json").document
    assert counted == {"fit": 1000, "changed": 0}


def test_a_line_whose_id_another_task_has_does_not_keep_the_others_from_being_stored(
    shell: Shell, url: str
) -> None:
    shell("enqueue", "shop.charge", "--id", "order-7")
    lines = "".join(f'{{"task": "shop.mail", "id": "order-{n}"}}\n' for n in (6, 7, 8))
    refused = shell("enqueue", "-", stdin=lines)
    assert (refused.code, refused.out) == (1, "order-6\norder-8\n")
    assert refused.err == (
        "Error: no job of task 'shop.mail' was stored under the id 'order-7': it belongs to a job "
        "of task 'shop.charge'; use ids that name their task, such as 'mail:order-7'\n"
        "It is line 2.\n"
        "2 jobs are stored, up to line 3; to continue, skip them: tail -n +4\n"
    )


def test_the_key_of_another_task_is_taken_only_in_the_scope_of_the_app(
    shell: Shell, url: str
) -> None:
    shell("enqueue", "shop.charge", "--unique", "order-7", "--id", "a")
    own = shell("enqueue", "shop.mail", "--unique", "order-7", "--id", "b")
    assert (own.out, own.err) == ("b\n", "")
    shell("enqueue", "shop.charge", "--unique", "all", "--unique-scope", "app", "--id", "c")
    taken = shell("enqueue", "shop.mail", "--unique", "all", "--unique-scope", "app")
    assert taken.err == "Job c already exists with the same unique key.\n"
    shown = shell("jobs", "show", "c", "--json").document
    assert (shown["unique"], shown["unique_scope"]) == ("all", "app")


def test_an_input_without_lines_stores_nothing(shell: Shell, url: str) -> None:
    empty = shell("enqueue", "-", stdin="\n\n")
    assert (empty.code, empty.out, empty.err) == (0, "", "The input contains no jobs.\n")


def test_ctrl_c_says_which_lines_are_stored(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
        def told(more: int) -> None:
            raise KeyboardInterrupt

        yield told

    monkeypatch.setattr(command, "progress", progress)
    ended = shell("enqueue", "x", "-", stdin="\n\n" + "{}\n" * 1500)
    assert (ended.code, len(ended.out.split())) == (130, 1000)
    assert ended.err == (
        "1,000 jobs are stored, up to line 1002; to continue, skip them: tail -n +1003\n"
    )


def test_what_is_not_certain_to_be_stored_is_said(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that does not come leaves both possible."""

    def lost(self: Penstock, calls: Iterable[Call]) -> list[Handle[Any]]:
        if first := next(answers, None):
            return first(self, calls)
        raise EngineTimeout("sqlite", "a call took longer than 30 s")

    answers = iter([Penstock.enqueue_many])
    monkeypatch.setattr(Penstock, "enqueue_many", lost)
    ended = shell("enqueue", "x", "-", stdin="{}\n" * 1500)
    assert ended.code == 1
    assert ended.err.endswith(
        "\n1,000 jobs are stored, up to line 1000; the next 500 may be stored too.\n"
    )
    ended = shell("enqueue", "x", "-", stdin="{}\n")
    assert ended.err.endswith("\nThe first 1 may be stored.\n")


@pytest.mark.parametrize("line", ['{"to": "\udcff"}', "{\udcff}"])
def test_bytes_that_are_no_text_are_refused(shell: Shell, url: str, line: str) -> None:
    """As they come from an input whose bytes are no UTF-8."""
    refused = shell("enqueue", "x", "-", stdin=line)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("Error: line 1 is wrong: x: '{")
    assert "is not valid JSON: " in refused.err
