"""``penstock queues``: what is in them, and what is decided about them."""

from __future__ import annotations

from threading import Event

import pytest

from cli.conftest import Shell
from penstock import Penstock
from penstock.events import WorkerJoined

QUEUE = {
    "name": "default",
    "paused": False,
    "note": None,
    "max_running": None,
    "ordered": False,
    "fair": False,
    "weights": {},
    "scheduled": 0,
    "ready": 1,
    "running": 0,
    "succeeded": 0,
    "failed": 0,
    "cancelled": 0,
    "held": 0,
    "workers": 0,
}


def test_queues_are_one_document(store: Shell) -> None:
    found = store("queues", "list", "--json")
    assert (found.code, found.err, found.document) == (0, "", {"queues": [QUEUE]})
    assert list(found.document["queues"][0]) == list(QUEUE)


def test_jobs_are_counted_by_state_and_holds_apart(store: Shell) -> None:
    store("enqueue", "shop.send", "--delay", "1h")
    store("queues", "set", "vip", "--fair")
    store("enqueue", "shop.send", "--queue", "vip", "--id", "held")
    with Penstock("sqlite:///jobs.db") as app:
        app.run_worker(queues="vip", until_empty=True)  # it has no such task
    store("enqueue", "shop.send", "--queue", "vip", "--id", "over")
    store("jobs", "cancel", "over")
    default, vip = store("queues", "list", "--json").document["queues"]
    assert (default["ready"], default["scheduled"], default["held"]) == (1, 1, 0)
    assert (vip["ready"], vip["held"], vip["cancelled"], vip["fair"]) == (0, 1, 1, True)


def test_a_queue_that_only_a_worker_knows_is_listed_with_its_workers(store: Shell) -> None:
    app = Penstock("sqlite:///jobs.db")
    joined = Event()
    app.on(WorkerJoined, lambda _: joined.set())
    with app.worker_thread(queues="mail,default"):
        assert joined.wait(60)
        queues = store("queues", "list", "--json").document["queues"]
    app.close()
    assert [(each["name"], each["workers"]) for each in queues] == [("default", 1), ("mail", 1)]


def test_settings_are_a_few_words_in_the_table(store: Shell) -> None:
    store("queues", "pause", "default", "--note", "provider is down")
    store("queues", "set", "default", "--max-running", "3", "--ordered", "--fair")
    store("queues", "set", "default", "--weight", "acme=2")
    titles, row = store("queues", "list").out.splitlines()
    assert titles.split() == [
        *("QUEUE", "READY", "SCHEDULED", "RUNNING", "FAILED", "WORKERS", "HELD", "SETTINGS")
    ]
    assert row.split(maxsplit=7) == [
        *("default", "1", "0", "0", "0", "0", "0"),
        "paused (provider is down), max_running 3, ordered, fair, acme=2",
    ]


def test_a_store_without_queues_says_so(store: Shell) -> None:
    store("jobs", "purge", "mine", "--yes")
    assert store("queues", "list").err == "There are no queues.\n"
    assert store("queues", "list", "--json").document == {"queues": []}


def test_a_queue_is_paused_with_a_note_and_resumed(store: Shell) -> None:
    paused = store("queues", "pause", "default", "--note", "provider is down")
    assert (paused.code, paused.out, paused.err) == (0, "Queue default is paused.\n", "")
    (queue,) = store("queues", "list", "--json").document["queues"]
    assert (queue["paused"], queue["note"]) == (True, "provider is down")
    resumed = store("queues", "resume", "default", "--json")
    assert resumed.document == {
        "name": "default",
        "paused": False,
        "note": None,
        "max_running": None,
        "ordered": False,
        "fair": False,
        "weights": {},
    }


def test_a_queue_that_nobody_has_named_is_paused_with_a_warning(store: Shell) -> None:
    typo = store("queues", "pause", "defualt")
    assert (typo.code, typo.out) == (0, "Queue defualt is paused.\n")
    assert typo.err == (
        "Warning: no job, setting or worker has named queue 'defualt' so far. "
        "Did you mean default?\n"
    )
    assert store("queues", "pause", "defualt").err == ""
    assert "Did you mean" not in store("queues", "pause", "zzz").err


def test_what_is_decided_stays_until_it_is_decided_otherwise(store: Shell) -> None:
    store("queues", "set", "default", "--max-running", "3", "--fair", "--weight", "acme=2.5")
    store("queues", "set", "default", "--weight", "initech=0.5", "--weight", "a=b=3", "--ordered")
    found = store("queues", "set", "default", "--weight", "acme=none", "--no-ordered", "--json")
    assert found.document == {
        "name": "default",
        "paused": False,
        "note": None,
        "max_running": 3,
        "ordered": False,
        "fair": True,
        "weights": {"a=b": 3.0, "initech": 0.5},
    }
    lifted = store("queues", "set", "default", "--max-running", "none", "--no-fair", "--json")
    assert (lifted.document["max_running"], lifted.document["fair"]) == (None, False)
    told = store("queues", "set", "default", "--fair")
    assert (told.code, told.out) == (0, "Queue default is set.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("set", "default"),
            "nothing is to be set; give --max-running, --ordered, --fair or --weight",
        ),
        (
            ("set", "default", "--max-running", "many"),
            "--max-running='many': give a whole number from 1, or none for no limit",
        ),
        (
            ("set", "default", "--max-running", "0"),
            "max_running=0: give a whole number from 1; to let nothing run, pause the queue",
        ),
        (
            ("set", "default", "--weight", "acme"),
            "--weight='acme': give a key and its share, such as acme=2 or acme=none",
        ),
        (
            ("set", "default", "--weight", "acme=two"),
            "--weight='acme=two': give a key and its share, such as acme=2 or acme=none",
        ),
        (("pause", ""), "queue='': it is empty; give at least one character"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(
    store: Shell, arguments: tuple[str, ...], message: str
) -> None:
    refused = store("queues", *arguments)
    assert refused.code == 2
    assert refused.err.endswith(f"Error: {message}\n")
    assert store("queues", "list", "--json").document == {"queues": [QUEUE]}
