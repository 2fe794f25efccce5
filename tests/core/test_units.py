"""Durations and sizes: every form that is taken, every mistake that is named, the way back."""

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.units import LONGEST, UNITS, seconds, size, text
from penstock.errors import BadDuration, BadOption


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0.0),
        (90, 90.0),
        (2.5, 2.5),
        ("90", 90.0),
        ("2.5", 2.5),
        ("0", 0.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 1 h  30 m ", 5400.0),
        ("3d", 259200.0),
        ("2w", 1209600.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1w2d3h4m5s6ms", 604800 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5 + 0.006),
        (timedelta(minutes=2, milliseconds=5), 120.005),
        (timedelta(0), 0.0),
    ],
)
def test_numbers_text_and_timedeltas_are_seconds(written, expected):
    assert seconds(written) == expected
    assert type(seconds(written)) is float


def test_milliseconds_are_exact_decimals():
    assert [seconds(f"{count}ms") for count in (1, 3, 7, 100)] == [0.001, 0.003, 0.007, 0.1]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (True, "it is a truth value, not a number"),
        (False, "it is a truth value, not a number"),
        (-1, "it is negative"),
        (-0.001, "it is negative"),
        (timedelta(seconds=-1), "it is negative"),
        (math.nan, "it is not a number"),
        (math.inf, "it is longer than a thousand years (365000d)"),
        (10**400, "it is longer than a thousand years (365000d)"),
        ("9" * 400, "it is longer than a thousand years (365000d)"),
        (LONGEST + 1, "it is longer than a thousand years (365000d)"),
        ("", "it is empty"),
        ("   ", "it is empty"),
        ("5x", "it has an unknown unit 'x' (known are w, d, h, m, s, ms)"),
        ("5M", "it has an unknown unit 'M' (known are w, d, h, m, s, ms)"),
        ("5min", "it has an unknown unit 'min' (known are w, d, h, m, s, ms)"),
        ("1h1h", "it has the unit 'h' twice"),
        ("30m1h", "it has 'h' after 'm'; write the largest first"),
        ("1h1m1h", "it has 'h' after 'm'; write the largest first"),
        ("1h30", "it has no unit after 30"),
        ("30 1h", "it has no unit after 30"),
        ("5m!", "it has no number at '!'"),
        ("m", "it has no number at 'm'"),
        ("-5s", "it has no number at '-5s'"),
        ("5s later", "it has no number at 'later'"),
        ("1e3", "it has an unknown unit 'e' (known are w, d, h, m, s, ms)"),
        ("1.s", "it has no unit after 1"),
        ("٣s", "it has no number at '٣s'"),
        ("nan", "it has no number at 'nan'"),
        (None, "it is of type NoneType"),
        (b"5s", "it is of type bytes"),
        (Decimal(5), "it is of type Decimal"),
    ],
)
def test_a_mistake_is_named_with_its_value(written, why):
    with pytest.raises(BadDuration) as caught:
        seconds(written)
    assert caught.value.value is written
    assert caught.value.why == why
    assert str(caught.value) == (
        f"{written!r} is not a duration: {why}; "
        "give seconds or text such as '90s', '5m', '1h30m', '3d'"
    )


def test_the_error_says_which_parameter_it_was():
    with pytest.raises(
        BadDuration, match="'5x' is not a duration: timeout has an unknown unit 'x'"
    ):
        seconds("5x", name="timeout")


def test_the_error_is_a_value_error():
    with pytest.raises(ValueError, match="-1 is not a duration: it is negative"):
        seconds(-1)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (0.0005, "0.5ms"),
        (1e-12, "0s"),
        (0.9996, "1s"),
        (1, "1s"),
        (2.5, "2.5s"),
        (59.9996, "1m"),
        (60, "1m"),
        (90.5, "1m30.5s"),
        (5400, "1h30m"),
        (86400, "1d"),
        (864000, "10d"),
        (1209600, "2w"),
        (1209600 + 1, "14d1s"),
        (3600.001, "1h0.001s"),
        (-90, "-1m30s"),
        (math.inf, "infs"),
        (LONGEST, "365000d"),
    ],
)
def test_seconds_are_written_as_people_write_them(number, expected):
    assert text(number) == expected


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=LONGEST))
def test_text_can_be_read_again_to_the_millisecond(number):
    assert seconds(text(number)) == pytest.approx(number, rel=1e-12, abs=0.00051)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(list(UNITS)), st.integers(0, 10_000), min_size=1))
def test_parts_add_up(parts):
    written = " ".join(f"{parts[unit]}{unit}" for unit in UNITS if unit in parts)
    assert seconds(written) == pytest.approx(sum(UNITS[unit] * n for unit, n in parts.items()))


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_duration_or_a_named_mistake(written):
    try:
        found = seconds(written)
    except BadDuration:
        return
    assert 0 <= found <= LONGEST


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        ("2GiB", 2 << 30),
        ("1.5 KiB", 1536),
        ("10B", 10),
        ("1TB", 10**12),
        (" 3kb ", 3000),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(value, expected):
    assert size(value, name="max_memory") == expected


@pytest.mark.parametrize("value", ["", "MB", "12 parsecs", "1 2MB", "-1MB", "1e3", True, 1.5, None])
def test_what_is_no_size_is_refused_with_an_example(value):
    with pytest.raises(BadOption) as caught:
        size(value, name="max_memory")
    assert str(caught.value) == (
        f"max_memory={value!r}: give bytes, or text such as '512MB' or '2GiB'"
    )


def test_a_size_is_not_negative():
    with pytest.raises(BadOption, match="max_memory=-1: a size is not negative"):
        size(-1, name="max_memory")
