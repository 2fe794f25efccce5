"""Log lines know their attempt, and are written as text or JSON whatever is in them."""

from __future__ import annotations

import contextvars
import copy
import io
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import logs
from penstock.context import CURRENT, Context
from penstock.errors import BadOption
from worker.test_pools import make_job

ATTEMPT = ("job", "task", "attempt", "queue", "correlation_id", "worker")


class Kept(logging.Handler):
    """Keeps the records it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    for logger in (log, ours):
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield handler
    for logger in (log, ours):
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def factory() -> Iterator[Any]:
    """The record factory is the same before and after each test."""
    before = logging.getLogRecordFactory()
    yield before
    after = logging.getLogRecordFactory()
    logging.setLogRecordFactory(before)
    assert after is before


log = logging.getLogger("shop.mail")
ours = logging.getLogger("penstock.worker")


def inside(function: Any, **fields: Any) -> Context:
    """Call a function as a handler would be."""
    fields = {"correlation_id": "c1", "worker": "w1", **fields}
    context = Context(make_job("j1", **fields), monotonic=lambda: 7.0)

    def call() -> None:
        CURRENT.set(context)
        function()

    contextvars.copy_context().run(call)
    return context


def facts(record: logging.LogRecord) -> tuple[Any, ...]:
    return tuple(record.__dict__[name] for name in ATTEMPT)


# --- the attempt in every record ----------------------------------------------------------------


def test_a_record_knows_the_attempt_it_was_written_in(kept):
    with logs.context():
        log.info("outside")
        inside(lambda: log.info("inside"))

    assert [facts(record) for record in kept.records] == [
        (None,) * 6,
        ("j1", "work", 1, "default", "c1", "w1"),
    ]
    assert logging.Formatter("%(job)s %(message)s").format(kept.records[1]) == "j1 inside"


def test_a_line_that_is_written_is_a_sign_of_life(kept):
    log.setLevel(logging.INFO)
    with logs.context():
        assert inside(lambda: log.debug("not written")).alive_at is None
        assert inside(lambda: log.info("written")).alive_at == 7.0


def test_records_are_as_ever_when_no_worker_runs(kept):
    inside(lambda: log.info("inside"))

    assert not hasattr(kept.records[0], "job")


def test_the_factory_is_there_as_long_as_anybody_needs_it(factory):
    first, second = logs.context(), logs.context()
    with first:
        installed = logging.getLogRecordFactory()
        assert installed is not factory
        with second:
            assert logging.getLogRecordFactory() is installed
        assert logging.getLogRecordFactory() is installed
    assert logging.getLogRecordFactory() is factory


def test_threads_share_the_factory_whoever_leaves_first(factory, kept):
    entered, leave = threading.Event(), threading.Event()

    def worker() -> None:
        with logs.context():
            entered.set()
            leave.wait(60)

    with logs.context():
        thread = threading.Thread(target=worker)
        thread.start()
        entered.wait(60)
    inside(lambda: log.info("still inside"))
    leave.set()
    thread.join(60)

    assert facts(kept.records[0])[0] == "j1"
    assert logging.getLogRecordFactory() is factory


def test_a_factory_that_somebody_set_meanwhile_stays_and_ours_is_quiet(factory, kept):
    with logs.context():
        former = logging.getLogRecordFactory()

        def theirs(*args: Any, **kwargs: Any) -> logging.LogRecord:
            return former(*args, **kwargs)

        logging.setLogRecordFactory(theirs)
    try:
        assert logging.getLogRecordFactory() is theirs
        inside(lambda: log.info("no worker runs"))
        assert not hasattr(kept.records[0], "job")
        with logs.context():
            inside(lambda: log.info("another worker runs"))
        assert kept.records[1].__dict__["job"] == "j1"
        assert logging.getLogRecordFactory() is theirs
    finally:
        logging.setLogRecordFactory(factory)


def test_what_another_factory_has_set_is_kept(factory, kept):
    def theirs(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        record.job = "theirs"
        return record

    logging.setLogRecordFactory(theirs)
    with logs.context():
        inside(lambda: log.info("inside"))
    logging.setLogRecordFactory(factory)

    assert facts(kept.records[0])[:2] == ("theirs", "work")


@pytest.mark.parametrize("name", ATTEMPT)
def test_code_may_go_on_giving_our_names_as_extra(kept, name):
    with logs.context():
        inside(lambda: log.info("inside", extra={name: "mine"}))
        log.info("outside", extra={name: "mine"})

    assert [record.__dict__[name] for record in kept.records] == ["mine", "mine"]


def test_other_names_are_refused_as_ever(kept):
    with logs.context(), pytest.raises(KeyError, match="Attempt to overwrite 'levelname'"):
        log.info("inside", extra={"levelname": "mine"})


def test_records_can_be_copied_and_sent_to_other_processes(kept):
    with logs.context():
        inside(lambda: log.info("inside"))

    (record,) = kept.records
    for twin in (copy.copy(record), pickle.loads(pickle.dumps(record))):
        assert facts(twin) == facts(record)
        assert twin.getMessage() == "inside"
    assert b"penstock" not in pickle.dumps(record.__dict__)


def test_a_line_is_written_even_if_its_attempt_cannot_be_told(kept):
    class Broken(Context):
        def alive(self) -> None:
            raise RuntimeError("broken")

    def call() -> None:
        CURRENT.set(Broken(make_job("j1")))
        log.info("written")

    with logs.context():
        contextvars.copy_context().run(call)

    assert [record.getMessage() for record in kept.records] == ["written"]


# --- our own lines ------------------------------------------------------------------------------


def test_an_event_is_its_name_and_its_fields(kept):
    logs.say(ours, logging.INFO, "worker joined", worker="w1", queues="a b", tasks=3, note="")

    (record,) = kept.records
    assert record.getMessage() == 'worker joined worker=w1 queues="a b" tasks=3 note=""'
    assert record.__dict__["event"] == "worker joined"
    assert record.__dict__["fields"] == {"worker": "w1", "queues": "a b", "tasks": 3, "note": ""}
    assert record.funcName == "test_an_event_is_its_name_and_its_fields"


def test_a_percent_sign_in_an_event_is_just_that(kept):
    logs.say(ours, logging.INFO, "memory at 90%d")

    assert kept.records[0].getMessage() == "memory at 90%d"


def test_an_event_below_the_level_costs_no_text(kept):
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("it was written")

    ours.setLevel(logging.INFO)
    logs.say(ours, logging.DEBUG, "quiet", value=Costly())

    assert kept.records == []


def test_an_event_is_written_even_where_its_names_are_taken(factory, kept):
    def theirs(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        record.event = "theirs"
        return record

    logging.setLogRecordFactory(theirs)
    logs.say(ours, logging.INFO, "worker joined", worker="w1")
    logging.setLogRecordFactory(factory)

    assert [record.getMessage() for record in kept.records] == ["worker joined worker=w1"]


# --- text ---------------------------------------------------------------------------------------


def text(record: logging.LogRecord, **options: Any) -> str:
    line = logs.TextFormatter(**options).format(record)
    assert line[2] == line[5] == ":"
    assert line[8] == "."
    return line[13:]


def test_text_is_one_readable_line(kept):
    with logs.context():
        logs.say(ours, logging.INFO, "worker joined", worker="w1")
        inside(lambda: log.warning("two\nlines of %s", "text"))

    joined, warned = map(text, kept.records)
    assert joined == "INFO  worker joined worker=w1"
    assert warned == ("WARNING shop.mail: two\\nlines of text job=j1 attempt=1 correlation=c1")


def test_text_does_not_repeat_the_job_of_an_event(kept):
    with logs.context():
        inside(lambda: logs.say(ours, logging.ERROR, "attempt stuck", job="j1"))

    assert text(kept.records[0]) == "ERROR attempt stuck job=j1 attempt=1 correlation=c1"


def test_a_traceback_follows_its_line(kept):
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed", stack_info=True)

    lines = text(kept.records[0]).splitlines()
    assert lines[:2] == ["ERROR shop.mail: it failed", "Traceback (most recent call last):"]
    assert "ValueError: no" in lines
    assert "Stack (most recent call last):" in lines


def test_colours_are_for_levels(kept):
    log.error("no")
    log.debug("well")

    assert text(kept.records[0], colours=True) == "\x1b[31mERROR\x1b[0m shop.mail: no"
    assert text(kept.records[1], colours=True) == "DEBUG shop.mail: well"


# --- JSON ---------------------------------------------------------------------------------------


def parsed(record: logging.LogRecord) -> dict[str, Any]:
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_json_has_the_attempt_and_what_was_given_as_extra(kept):
    with logs.context():
        inside(lambda: log.info("sent to %s", "a@b.c", extra={"size": 5, "fields": "mine"}))
    kept.records[0].created = 1_700_000_000.5

    assert parsed(kept.records[0]) == {
        "at": "2023-11-14T22:13:20.500Z",
        "level": "info",
        "logger": "shop.mail",
        "message": "sent to a@b.c",
        "job": "j1",
        "task": "work",
        "attempt": 1,
        "queue": "default",
        "correlation_id": "c1",
        "worker": "w1",
        "size": 5,
        "fields": "mine",
    }


def test_json_has_the_fields_of_an_event_as_keys(kept):
    with logs.context():
        logs.say(ours, logging.WARNING, "lease lost", worker="w9", dropped=3, level="x")

    line = parsed(kept.records[0])
    del line["at"]
    assert line == {
        "level": "warning",
        "logger": "penstock.worker",
        "message": "lease lost worker=w9 dropped=3 level=x",
        "event": "lease lost",
        "worker": "w9",
        "dropped": 3,
    }


def test_json_has_the_error_and_its_traceback(kept):
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        logs.say(ours, logging.ERROR, "shutdown hook failed", exc_info=error, hook="close")

    line = parsed(kept.records[0])
    assert (line["error"], line["hook"]) == ("ValueError: two\nlines", "close")
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].endswith("ValueError: two\nlines")


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


class Hopeless:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Odd(), "Odd()"),
        ([Odd()], ["Odd()"]),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        (Hopeless(), "<Hopeless>"),
        ("\ud800", "\\ud800"),
        (float("nan"), None),
        (1 << 80, 1 << 80),
        (endless(), "[[...]]"),
    ],
)
def test_json_writes_what_it_can_and_else_what_python_would(kept, value, written):
    log.info("odd", extra={"value": value})

    line = parsed(kept.records[0])
    assert line["message"] == "odd"
    assert line["value"] == written


def test_json_hides_what_is_named_like_a_secret(kept):
    log.info("asked", extra={"api_key": "abc", "headers": {"Authorization": "Bearer x"}})
    log.info("asked", extra={"api_key": "abc", "odd": endless()})

    asked, odd = map(parsed, kept.records)
    assert (asked["api_key"], asked["headers"]) == (
        "[redacted]",
        {"Authorization": "[redacted]"},
    )
    assert odd["api_key"] == "[redacted]"


# --- configure ----------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was after each test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_configure_writes_all_that_is_logged_and_called_again_changes_that(root):
    before = len(root.handlers)
    first, second = io.StringIO(), io.StringIO()
    logs.configure("text", "info", first)
    log.info("one")
    log.debug("unseen")
    logs.configure("json", "debug", second)
    log.debug("two")

    assert first.getvalue()[13:] == "INFO  shop.mail: one\n"
    assert json.loads(second.getvalue())["message"] == "two"
    assert len(root.handlers) == before + 1


def test_configure_writes_to_standard_error(root, capsys):
    logs.configure()
    log.info("one")

    assert capsys.readouterr().err.endswith("INFO  shop.mail: one\n")


@pytest.mark.parametrize(("no_color", "is_colourful"), [(None, True), ("", True), ("1", False)])
def test_colours_are_for_terminals_of_those_who_want_them(
    root, monkeypatch, no_color, is_colourful
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    logs.configure(stream=stream)
    log.error("no")

    assert ("\x1b" in stream.getvalue()) is is_colourful


def test_a_format_or_level_that_is_none_is_refused(root):
    with pytest.raises(BadOption, match="format='xml': give one of text, json"):
        logs.configure("xml")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="level='loud': give one of debug, info, warning, error,"):
        logs.configure(level="loud")
