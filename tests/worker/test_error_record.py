"""What is written down of an error: enough, bounded, and storable anywhere."""

from __future__ import annotations

from penstock.worker.error_record import error_record, kind_of, message_of, storable, summary_of
from worker.test_pools import make_job


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


def test_the_kind_is_the_name_it_would_be_imported_by():
    assert kind_of(ValueError()) == "ValueError"
    assert kind_of(OddError()) == f"{__name__}.OddError"


def test_an_error_that_cannot_even_say_what_it_is_does_no_harm():
    assert message_of(OddError()) == "its message cannot be read: RuntimeError"
    record = error_record(OddError(), make_job(attempt=2), 5.0, "w1")
    assert (record.attempt, record.at, record.worker) == (2, 5.0, "w1")


def test_a_summary_is_one_line():
    assert summary_of(ValueError("no")) == "ValueError: no"
    assert summary_of(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_what_some_store_cannot_keep_is_written_out():
    assert storable("a\x00b\udc80c", 100) == "a\\x00b\\udc80c"


def test_long_texts_lose_their_middle():
    text = storable("a" * 1000 + "b" * 10_000 + "c" * 1000, 4000)

    assert len(text) < 4100
    assert text.startswith("a" * 1000)
    assert text.endswith("c" * 1000)
    assert "8000 characters left out" in text


def test_a_traceback_begins_in_the_handler_and_keeps_its_cause():
    def inner() -> None:
        raise KeyError("cause")

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError("effect") from error
    except ValueError as error:
        record = error_record(error, make_job(), 0.0, "w1")

    assert record.traceback is not None
    assert "in inner" in record.traceback
    assert "direct cause" in record.traceback
    assert record.traceback.rstrip().endswith("ValueError: effect")


def test_an_endless_recursion_leaves_a_bounded_traceback():
    def down(n: int) -> int:
        return down(n + 1) + 1

    try:
        down(0)
    except RecursionError as error:
        record = error_record(error, make_job(), 0.0, "w1")

    assert record.traceback is not None
    assert len(record.traceback) < 17_000
