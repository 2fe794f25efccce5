"""Sizes as people write them."""

from __future__ import annotations

import pytest

from penstock.core.units import size
from penstock.errors import BadOption


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
