"""Tracebacks read as Python's own, also when their places in the code are known already."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from penstock.worker import tracebacks
from penstock.worker.tracebacks import TracebackWriter


class LoudError(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def alone() -> None:
    raise ValueError("no luck")


def without_a_word() -> None:
    raise KeyboardInterrupt


def of_a_class_of_ours() -> None:
    raise LoudError


def several_lines() -> None:
    raise ValueError("one\ntwo")


def in_the_middle_of_a_line() -> None:
    _ = [1, 2, 3][0] + {"a": 1}["b"] + len("x")


def with_a_cause() -> None:
    try:
        alone()
    except ValueError as error:
        raise KeyError("effect") from error


def with_a_context() -> None:
    try:
        alone()
    except ValueError:
        raise KeyError("meanwhile")  # noqa: B904


def with_its_context_left_out() -> None:
    try:
        alone()
    except ValueError:
        raise KeyError("only this") from None


def with_a_cause_that_was_never_raised() -> None:
    raise KeyError("effect") from ValueError("cause")


def with_itself_as_its_context() -> None:
    error = ValueError("round")
    error.__context__ = error
    raise error


def with_a_note() -> None:
    error = ValueError("no luck")
    error.add_note("it was a Monday")
    raise error


def several_at_once() -> None:
    errors: list[Exception] = []
    for call in (alone, with_a_cause):
        try:
            call()
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("both", errors)


# The next three are wrong on purpose: Python's own text for them ends in a suggestion.


def a_name_misspelt() -> None:
    several = 1
    print(severl)  # type: ignore[name-defined]  # noqa: F821
    print(several)


def no_such_attribute() -> None:
    "text".uper()  # type: ignore[attr-defined]


def no_such_module() -> None:
    from collections import Conter  # type: ignore[attr-defined]  # noqa: F401


def no_python() -> None:
    compile("a b", "text", "exec")


def down(depth: int = 0) -> None:
    if depth == 50:
        raise ValueError("deep")
    down(depth + 1)


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def as_python(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "call",
    [
        alone,
        without_a_word,
        of_a_class_of_ours,
        several_lines,
        in_the_middle_of_a_line,
        with_a_cause,
        with_a_context,
        with_its_context_left_out,
        with_a_cause_that_was_never_raised,
        with_itself_as_its_context,
        with_a_note,
        several_at_once,
        a_name_misspelt,
        no_such_attribute,
        no_such_module,
        no_python,
        down,
    ],
)
def test_a_traceback_reads_as_python_writes_it(call: Callable[[], object]) -> None:
    writer = TracebackWriter()
    for _ in range(2):
        error = raised(call)
        assert writer.write(error, error.__traceback__) == as_python(error)


def test_an_error_without_frames_reads_so_too() -> None:
    error = KeyError("effect")
    error.__cause__ = raised(alone)
    assert TracebackWriter().write(error, None) == as_python(error)


def test_a_place_in_the_code_is_looked_up_once(monkeypatch) -> None:
    looked_up: list[object] = []

    def extract(frame, limit):
        looked_up.append(frame.tb_frame.f_code)
        return traceback.extract_tb(frame, limit)

    monkeypatch.setattr(tracebacks, "extract_tb", extract)
    writer = TracebackWriter()
    for _ in range(3):
        error = raised(with_a_cause)
        writer.write(error, error.__traceback__)

    # ``raised`` and ``with_a_cause``; of the cause ``with_a_cause`` at another line and ``alone``.
    assert len(looked_up) == 4


def test_only_so_many_places_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(tracebacks, "MOST_PLACES", 3)
    writer = TracebackWriter()
    for call in (alone, in_the_middle_of_a_line, with_a_cause, down, alone):
        error = raised(call)
        assert writer.write(error, error.__traceback__) == as_python(error)
        assert len(writer._places) <= 3


def test_code_that_is_gone_is_not_taken_for_other_code() -> None:
    writer = TracebackWriter()
    for number in range(50):
        made: dict[str, Callable[[], object]] = {}
        exec(compile(f"def made_{number}(): raise ValueError", f"<{number}>", "exec"), made)
        error = raised(made[f"made_{number}"])
        assert f'File "<{number}>", line 1, in made_{number}' in writer.write(
            error, error.__traceback__
        )
        del made, error
