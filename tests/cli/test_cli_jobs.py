"""``penstock jobs``: lists, one job, and what is done to many."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGINT, pthread_kill
from threading import Event, main_thread

import pytest

from cli.conftest import Shell
from penstock import Penstock, Retry
from penstock.cli import chosen_jobs, prompts

RECORD = {
    "id": "mine",
    "task": "shop.send",
    "name": None,
    "state": "ready",
    "queue": "default",
    "priority": 5,
    "key": None,
    "tags": ["a"],
    "correlation_id": None,
    "meta": {},
    "unique": None,
    "unique_scope": None,
    "unique_until": None,
    "at_most_once": False,
    "hold": None,
    "hold_cause": None,
    "hold_until_at": None,
    "attempt": 0,
    "failures": 0,
    "crashes": 0,
    "rescues": 0,
    "worker": None,
    "started": False,
    "progress": None,
    "note": None,
    "reason": None,
    "cancel_reason": None,
    "enqueued_at": "TIME",
    "enqueued_by": "PROCESS",
    "run_at": None,
    "claimed_at": None,
    "finished_at": None,
    "expires_at": None,
    "payload": {"to": "ada"},
    "result": None,
    "errors": [],
}


def failing(store: Shell) -> Penstock:
    """An app on the same store whose jobs have run: one failed, one succeeded."""
    app = Penstock("sqlite:///jobs.db")

    @app.task(name="shop.charge", retries=0)
    def charge(order: int) -> None:
        raise ValueError("card\x1b[31m declined")

    @app.task(name="shop.send")
    def send(to: str) -> dict[str, str]:
        return {"to": to}

    charge.using(id="bad", key="acme").enqueue(7)
    app.run_worker(until_empty=True)
    return app


# --- list ---------------------------------------------------------------------------------------


def test_a_page_of_jobs_is_one_document(store: Shell) -> None:
    found = store("jobs", "list", "--json")
    assert (found.code, found.err) == (0, "")
    assert found.steady == {"jobs": [RECORD], "cursor": None}
    assert list(found.steady["jobs"][0]) == list(RECORD)


def test_pages_follow_one_another_by_their_cursor(store: Shell) -> None:
    store("enqueue", "shop.send", "-", stdin="{}\n" * 4)
    first = store("jobs", "list", "--limit", "3", "--json").document
    rest = store("jobs", "list", "--limit", "3", "--json", "--cursor", first["cursor"]).document
    assert (len(first["jobs"]), len(rest["jobs"]), rest["cursor"]) == (3, 2, None)
    assert rest["jobs"][-1]["id"] == "mine"


def test_how_to_see_the_next_page_is_told_beside_the_table(store: Shell) -> None:
    store("enqueue", "shop.send", "-", "--queue", "a b", stdin="{}\n" * 3)
    page = store("jobs", "list", "--queue", "a b", "--queue", "c", "--limit", "2")
    assert page.out.count("\n") == 3
    more = "Next page: penstock jobs list --queue 'a b' --queue c --limit 2 --cursor 3\n"
    assert page.err == more
    assert store("jobs", "list", "--all").err == ""


def test_all_pages_are_one_line_for_each_job(store: Shell) -> None:
    store("enqueue", "shop.send", "-", stdin="{}\n" * 1200)
    lines = store("jobs", "list", "--all", "--json").out.splitlines()
    assert len(lines) == 1201
    assert json.loads(lines[-1])["id"] == "mine"
    table = store("jobs", "list", "--all").out.splitlines()
    assert (len(table), table[0].split()[0]) == (1202, "ID")
    assert [line for line in table if line.startswith("ID")] == table[:1]


def test_a_table_that_is_no_screen_has_every_text_in_full(store: Shell) -> None:
    long = "x" * 200
    store("enqueue", long, "--queue", "mail", "--key", "k\x1b[31m", "--delay", "3d", "--id", "b")
    titles, job, mine = store("jobs", "list").out.splitlines()
    assert titles.split() == ["ID", "STATE", "TASK", "ENQUEUED", "QUEUE", "KEY", "ATTEMPT", "ABOUT"]
    assert job.split()[:3] == ["b", "scheduled", long]
    assert job.split()[5:] == ["mail", r"k\x1b[31m", "0", "in", "2d"]
    assert mine.split()[:3] == ["mine", "ready", "shop.send"]


def test_jobs_are_chosen_by_what_they_are(store: Shell) -> None:
    options = ("--queue", "mail", "--key", "acme", "--correlation-id", "c", "--delay", "1h")
    store("enqueue", "other", "--id", "b", *options)

    def ids(*chosen: str) -> list[str]:
        return [job["id"] for job in store("jobs", "list", "--json", *chosen).document["jobs"]]

    assert ids("--state", "scheduled") == ids("--queue", "mail") == ids("--key", "acme") == ["b"]
    assert ids("--correlation-id", "c") == ids("--task", "other") == ["b"]
    assert ids("--tag", "a") == ids("--state", "ready", "--queue", "default") == ["mine"]
    assert ids("--state", "ready", "--state", "scheduled") == ["b", "mine"]
    assert ids("--since", "1h") == ids("--until", "2100-01-01") == ["b", "mine"]
    assert ids("--since", "0001-01-01") == ids("--since", "300000d") == ["b", "mine"]
    assert ids("--until", "1h") == ids("--since", "2100-01-01T00:00+02:00") == []
    assert ids("--hold", "limit") == []


def test_that_nothing_fits_is_said_and_is_no_failure(store: Shell) -> None:
    found = store("jobs", "list", "--state", "failed")
    assert (found.code, found.err) == (0, "No jobs match.\n")
    store("jobs", "purge", "mine", "--yes")
    assert store("jobs", "list").err == "There are no jobs.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--state", "lost"),
            "Error: state=['lost']: give one or more of scheduled, ready, running, succeeded, "
            "failed, cancelled\n",
        ),
        (
            ("--cursor", "x"),
            "Error: cursor='x': give the one of the page before, or none for the first page\n",
        ),
        (
            ("--since", "soon"),
            "Error: --since='soon': give how long ago, such as 2h, or a date and time, such as "
            "2026-11-16T03:20\n",
        ),
        (
            ("--until", ""),
            "Error: --until='': give how long ago, such as 2h, or a date and time, such as "
            "2026-11-16T03:20\n",
        ),
        (
            ("--since", "1h", "--until", "2h"),
            "Error: no job can match --since 1h --until 2h: --since must be before --until\n",
        ),
        (
            ("--limit", "99999999999999999999"),
            "Error: limit=99999999999999999999: give a whole number from 1 to 1000000\n",
        ),
    ],
)
def test_a_list_that_cannot_be_made_says_why(
    store: Shell, arguments: tuple[str, ...], message: str
) -> None:
    refused = store("jobs", "list", *arguments)
    assert (refused.code, refused.out, refused.err) == (2, "", message)


# --- show ---------------------------------------------------------------------------------------


def test_one_job_is_the_same_record(store: Shell) -> None:
    assert store("jobs", "show", "mine", "--json").steady == RECORD


def test_a_failed_job_is_shown_with_its_error(store: Shell) -> None:
    failing(store).close()
    record = store("jobs", "show", "bad", "--json").steady
    (error,) = record["errors"]
    assert (record["state"], record["payload"], record["key"]) == ("failed", {"order": 7}, "acme")
    assert list(error) == ["attempt", "at", "kind", "message", "worker", "traceback"]
    assert (error["kind"], error["at"], error["attempt"]) == ("ValueError", "TIME", 1)
    page = store("jobs", "show", "bad").out
    assert "attempt      1 (1 failure)\n" in page
    assert "\nAttempt 1: ValueError\n" in page
    assert '    raise ValueError("card\\x1b[31m declined")\n' in page
    assert "\x1b" not in page
    assert '\nPayload\n  {\n    "order": 7\n  }\n' in page


def test_a_job_that_succeeded_is_shown_with_its_result(store: Shell) -> None:
    failing(store).close()
    assert store("jobs", "show", "mine", "--json").steady["result"] == {"to": "ada"}
    assert '\nResult\n  {\n    "to": "ada"\n  }\n' in store("jobs", "show", "mine").out


def test_why_a_job_waits_is_said_beside_its_state(store: Shell) -> None:
    lines = store("jobs", "show", "mine").out.splitlines()
    assert lines[:3] == ["id           mine", "task         shop.send", "state        ready"]
    assert lines[3].startswith("why          ready: no worker is running")


def test_a_payload_that_is_no_json_is_shown_as_it_is(store: Shell) -> None:
    import sqlite3

    with sqlite3.connect("jobs.db") as connection:
        connection.execute("UPDATE job SET payload = ?", (b"\xffno {json",))
    connection.close()
    assert store("jobs", "show", "mine", "--json").document["payload"] == r"\xffno {json"
    assert "\nPayload\n  \\xffno {json\n" in store("jobs", "show", "mine").out


def test_an_unknown_job_is_not_there(store: Shell) -> None:
    unknown = store("jobs", "show", "nobody")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err.startswith("Error: job nobody is not in the store: it was pruned, purged or")


# --- retry, cancel, purge by id -----------------------------------------------------------------


def test_what_became_of_each_id_is_told(store: Shell) -> None:
    failing(store).close()
    answer = store("jobs", "retry", "bad", "mine", "nobody", "bad", "--json")
    assert answer.code == 1
    assert answer.document == {
        "jobs": [
            {"id": "bad", "changed": True, "state": "ready", "owner": None},
            {"id": "mine", "changed": False, "state": "succeeded", "owner": None},
            {"id": "nobody", "changed": False, "state": None, "owner": None},
        ]
    }
    assert store("jobs", "retry", "bad", "nobody").out == (
        "ID      OUTCOME\nbad     not retried: it is ready\nnobody  not in the store\n"
    )


def test_ids_may_come_from_the_input(store: Shell) -> None:
    cancelled = store("jobs", "cancel", "-", "--reason", "too late", stdin="mine\n\n mine \n")
    assert (cancelled.code, cancelled.out) == (0, "ID    OUTCOME\nmine  cancelled\n")
    assert store("jobs", "show", "mine", "--json").document["reason"] == "too late"
    retried = store("jobs", "retry", "mine")
    assert (retried.code, retried.out) == (0, "ID    OUTCOME\nmine  retried\n")


def test_cancelling_twice_is_as_told(store: Shell) -> None:
    assert store("jobs", "cancel", "mine").code == 0
    again = store("jobs", "cancel", "mine")
    assert (again.code, again.out) == (
        0,
        "ID    OUTCOME\nmine  not cancelled: it is cancelled\n",
    )


def test_what_has_succeeded_cannot_be_cancelled(store: Shell) -> None:
    failing(store).close()
    assert store("jobs", "cancel", "mine").code == 1


def test_a_rehearsal_changes_nothing(store: Shell) -> None:
    rehearsed = store("jobs", "cancel", "mine", "nobody", "--dry-run")
    assert (
        rehearsed.out == "ID      OUTCOME\nmine    would be cancelled\nnobody  not in the store\n"
    )
    refused = store("jobs", "retry", "mine", "--dry-run")
    assert refused.out == "ID    OUTCOME\nmine  not retried: it is ready\n"
    assert store("jobs", "show", "mine", "--json").document["state"] == "ready"


def test_a_retry_that_would_break_a_unique_key_names_who_has_it(store: Shell) -> None:
    store("enqueue", "shop.send", "--id", "first", "--unique", "welcome")
    store("jobs", "cancel", "first")
    store("enqueue", "shop.send", "--id", "second", "--unique", "welcome")
    refused = store("jobs", "retry", "first")
    assert refused.code == 1
    assert refused.out == ("ID     OUTCOME\nfirst  not retried: job second has its unique key\n")
    assert store("jobs", "retry", "first", "--json").document["jobs"][0]["owner"] == "second"


# --- retry, cancel, purge by filter -------------------------------------------------------------


def test_all_that_fit_are_changed_if_nobody_has_to_be_asked(store: Shell) -> None:
    failing(store).close()
    retried = store("jobs", "retry", "--task", "shop.charge", "--yes")
    assert (retried.code, retried.out) == (0, "1 job retried.\n")
    cancelled = store("jobs", "cancel", "--all", "--yes", "--json")
    assert (cancelled.code, cancelled.document) == (0, {"changed": 1})
    purged = store("jobs", "purge", "--state", "succeeded", "--state", "cancelled", "--yes")
    assert (purged.code, purged.out) == (0, "2 jobs deleted.\n")


def test_a_filter_that_fits_nothing_has_nothing_to_do(store: Shell) -> None:
    nothing = store("jobs", "retry", "--queue", "default", "--yes")
    assert (nothing.code, nothing.out, nothing.err) == (1, "", "No jobs match.\n")
    assert store("jobs", "retry", "--all", "--json").document == {"fit": 0, "changed": 0}


@pytest.mark.parametrize(
    ("verb", "question"), [("cancel", "Cancel 1 job?"), ("purge", "Delete 1 job?")]
)
def test_a_question_that_nobody_can_answer_is_refused(
    store: Shell, verb: str, question: str
) -> None:
    refused = store("jobs", verb, "--all", stdin="y\n")
    assert (refused.code, refused.out, refused.err) == (
        2,
        "",
        f"Error: '{question}' cannot be asked, because the input is not a terminal; add --yes, or "
        "use --dry-run to see what would be done\n",
    )
    assert store("jobs", "show", "mine", "--json").document["state"] == "ready"


def test_how_many_would_be_changed_can_be_seen_before(store: Shell) -> None:
    seen = store("jobs", "purge", "--all", "--dry-run")
    assert (seen.code, seen.out) == (0, "1 job would be deleted.\n")
    assert store("jobs", "cancel", "--queue", "default", "--dry-run", "--json").document == {
        "fit": 1,
        "changed": 0,
    }


def test_named_jobs_that_could_not_be_purged_are_counted(store: Shell) -> None:
    purged = store("jobs", "purge", "mine", "nobody", "--yes")
    assert (purged.code, purged.out) == (1, "1 job deleted.\n")
    assert purged.err == "Not deleted: 1 of these ids, running or not in the store.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("retry",),
            "no jobs are selected; give ids, a filter such as --queue, or --all",
        ),
        (
            ("retry", "mine", "--all"),
            "both ids and filters are given; give one or the other",
        ),
        (
            ("purge", "--all", "--queue", "a"),
            "both filters and --all are given; give one or the other",
        ),
        (("cancel", "-"), "the input has no ids; give one id per line"),
        (
            ("purge", "--state", "running"),
            "running jobs cannot be deleted; cancel them first: penstock jobs cancel",
        ),
        (("cancel", ""), "ids='': it is empty; give at least one character"),
        (
            ("cancel", "--queue", "default", "--tag", ""),
            "tag='': it is empty; give at least one character",
        ),
        (
            ("purge", "--queue", "default", "--correlation-id", ""),
            "correlation_id='': it is empty; give at least one character",
        ),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(
    store: Shell, arguments: tuple[str, ...], message: str
) -> None:
    refused = store("jobs", *arguments, "--yes")
    assert (refused.code, refused.out, refused.err) == (2, "", f"Error: {message}\n")
    assert store("jobs", "show", "mine", "--json").document["state"] == "ready"


def test_a_running_job_is_asked_to_end_and_shows_how_far_it_is(store: Shell) -> None:
    began, ends = Event(), Event()
    app = Penstock("sqlite:///jobs.db")

    @app.task(name="shop.send", retries=0)
    def send(to: str) -> None:
        began.set()
        ends.wait(60)
        raise Retry(delay=3600)

    with app.worker_thread():
        assert began.wait(60)
        table = store("jobs", "list").out.splitlines()[1]
        asked = store("jobs", "cancel", "mine")
        ends.set()
    app.close()
    assert table.split()[1] == "running"
    assert (asked.code, asked.out) == (0, "ID    OUTCOME\nmine  asked to end\n")


# --- what ends early ----------------------------------------------------------------------------


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes after the first step; the work goes on when it was heard."""

    @contextmanager
    def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
        heard = Event()

        def told(more: int) -> None:
            pthread_kill(main_thread().ident or 0, SIGINT)
            heard.wait(60)

        try:
            yield told
        finally:
            heard.set()

    monkeypatch.setattr(chosen_jobs, "progress", progress)


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        (("purge", "--all", "--yes"), "200"),
        (("cancel", "--all", "--yes"), "500"),
        (("cancel", "-"), "1,000"),
    ],
)
@pytest.mark.usefixtures("ctrl_c")
def test_how_far_it_came_is_said_when_ctrl_c_ends_it(
    store: Shell, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], step: str
) -> None:
    ids = store("enqueue", "shop.send", "-", stdin="{}\n" * 2499).out + "mine\n"
    ended = store("jobs", *arguments, stdin=ids)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == (
        f"Stopped after {step} of 2,500 jobs, perhaps a few more; run the command again to "
        "continue.\n"
    )
    monkeypatch.setattr(chosen_jobs, "progress", prompts.progress)
    left = store("jobs", "cancel", "--all", "--dry-run", "--json").document["fit"]
    assert 0 < left <= 2500 - int(step.replace(",", ""))
    assert store("jobs", *arguments, stdin=ids).code == 0
    assert store("jobs", "cancel", "--all", "--dry-run", "--json").document["fit"] == 0


# --- edit and run-now ---------------------------------------------------------------------------


def test_a_waiting_job_is_moved_made_urgent_and_put_off(store: Shell) -> None:
    done = store("jobs", "edit", "mine", "--queue", "mail", "--priority", "high")
    assert (done.code, done.out) == (0, "ID    OUTCOME\nmine  edited\n")
    job = store("jobs", "show", "mine", "--json").document
    assert (job["queue"], job["priority"], job["state"]) == ("mail", 0, "ready")
    assert store("jobs", "edit", "mine", "--run-at", "2099-01-01T00:00").code == 0
    job = store("jobs", "show", "mine", "--json").document
    assert (job["state"], job["run_at"]) == ("scheduled", "2099-01-01T00:00:00.000000Z")
    assert store("jobs", "edit", "mine", "--run-at", "2001-01-01T00:00").code == 0
    job = store("jobs", "show", "mine", "--json").document
    assert (job["state"], job["queue"]) == ("ready", "mail")


def test_only_waiting_jobs_can_be_edited(store: Shell) -> None:
    store("jobs", "cancel", "mine")
    done = store("jobs", "edit", "mine", "nobody", "--delay", "1h")
    assert done.code == 1
    assert done.out == (
        "ID      OUTCOME\nmine    not edited: it is cancelled\nnobody  not in the store\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--queue", "x"),
            "no jobs are selected; give their ids, or - to read them from the input",
        ),
        (("mine",), "no change is given; add --queue, --priority, --run-at or --delay"),
        (("mine", "--priority", "soon"), "unknown priority 'soon'"),
        (("mine", "--delay", "1h", "--run-at", "2099-01-01"), "a delay is given as well"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(
    store: Shell, arguments: tuple[str, ...], message: str
) -> None:
    refused = store("jobs", "edit", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err


def test_a_scheduled_job_is_run_now(store: Shell) -> None:
    store("enqueue", "shop.send", "--id", "later", "--delay", "2h")
    done = store("jobs", "run-now", "later", "mine")
    assert done.code == 1
    assert done.out == ("ID     OUTCOME\nlater  made ready\nmine   not made ready: it is ready\n")
    assert store("jobs", "show", "later", "--json").document["state"] == "ready"


def test_scheduled_jobs_that_a_filter_selects_are_run_now(store: Shell) -> None:
    for number in range(3):
        store("enqueue", "shop.send", "--queue", "mail", "--id", f"j{number}", "--delay", "2h")
    assert store("jobs", "run-now", "--queue", "mail", "--dry-run").out == (
        "3 jobs would be made ready.\n"
    )
    done = store("jobs", "run-now", "--queue", "mail", "--yes")
    assert (done.code, done.out) == (0, "3 jobs made ready.\n")
    assert store("jobs", "run-now", "--state", "ready").code == 2
