"""The tables of the page on types: each value comes back, or is refused, as the page says."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from docs.pages import DOCS
from penstock.core.signature import Signature
from penstock.errors import BadArguments, Unencodable


class Color(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: int
    price: Decimal


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    size: int


class Struct(msgspec.Struct):
    name: str


class Model(pydantic.BaseModel):
    name: str


NAMES = {
    each.__name__: each
    for each in (Color, Order, Point, Options, Struct, Model, Decimal, Path, UUID, deque)
} | {
    **{each.__name__: each for each in (date, datetime, time, timedelta)},
    "UTC": UTC,
    "Literal": Literal,
}


def rows(section: str) -> list[list[str]]:
    text = (DOCS / "how-to/types.md").read_text().split(f"## {section}\n", 1)[1]
    lines = [line for line in text.split("\n## ", 1)[0].splitlines() if line.startswith("| ")]
    cells = [line.replace(r"\|", "¦")[1:-1].split("|") for line in lines[1:]]
    return [[cell.strip().replace("¦", "|") for cell in row] for row in cells]


def value_of(cell: str) -> Any:
    return eval(cell.split("`")[1], dict(NAMES))


def signature(cell: str) -> Signature:
    def task(value):
        return value

    if cell != "none":
        task.__annotations__ = {"value": value_of(cell)}
    return Signature.of(task, "task")


@pytest.mark.parametrize("hint, value, stored", rows("What comes back"))
def test_a_value_comes_back_as_the_table_says(hint: str, value: str, stored: str) -> None:
    signed, given = signature(hint), value_of(value)
    payload = signed.encode((given,), {})
    assert payload.decode() == f'{{"value":{stored.strip("`")}}}'
    back = signed.decode(payload)[1]["value"]
    assert (back, type(back)) == (given, type(given))


@pytest.mark.parametrize("hint, value, why", rows("What is refused"))
def test_a_value_is_refused_as_the_table_says(hint: str, value: str, why: str) -> None:
    with pytest.raises((BadArguments, Unencodable)) as caught:
        signature(hint).encode((value_of(value),), {})
    assert why in str(caught.value)


def test_the_tables_are_read() -> None:
    assert (len(rows("What comes back")), len(rows("What is refused"))) == (27, 10)
