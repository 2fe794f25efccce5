"""Types that cannot be found, and values that would arrive as another type, in a user's module."""

from __future__ import annotations

import importlib
import sys
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import BadArguments, BadItem, BadTask

SHOP = """
from __future__ import annotations
from typing import TYPE_CHECKING
from penstock import Penstock

if TYPE_CHECKING:
    from models import Order

app = Penstock("memory://")

@app.task
def ship(order: Order) -> None: ...

@app.task
def refund(order: Later) -> str:
    return type(order).__name__

@app.task
def untyped(value): ...

from dataclasses import dataclass

@dataclass
class Later:
    id: int
"""


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Any:
    (tmp_path / "shop_of_types.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    yield (module := importlib.import_module("shop_of_types"))
    module.app.close()
    del sys.modules["shop_of_types"]


REFUSAL = (
    "shop_of_types.ship cannot be a task: its parameter 'order' is annotated Order, but name "
    "'Order' is not defined when the program runs; import it outside `if TYPE_CHECKING:`, or "
    "define it before the task"
)


def test_a_type_for_the_type_checker_only_is_refused_at_the_first_enqueue(shop):
    for enqueue in (
        lambda: shop.ship.enqueue({"id": 7}),
        lambda: shop.ship.using(delay=5).enqueue({"id": 7}),
        lambda: shop.app.enqueue("shop_of_types.ship", {"order": {"id": 7}}),
    ):
        with pytest.raises(BadTask) as caught:
            enqueue()
        assert str(caught.value) == REFUSAL
    with pytest.raises(BadItem) as many:
        shop.ship.enqueue_many([({"id": 7},)])
    assert str(many.value) == f"item 0 is wrong and nothing was stored: {REFUSAL}"
    assert shop.app.count() == 0


async def test_an_awaited_enqueue_refuses_it_too(shop):
    with pytest.raises(BadTask, match="its parameter 'order' is annotated Order"):
        await shop.ship.aenqueue({"id": 7})
    await shop.app.aclose()


def test_a_class_further_down_in_the_module_is_found(shop):
    handle = shop.refund.enqueue(shop.Later(7))
    shop.app.run_worker(until_empty=True)
    assert handle.result(timeout=5) == "Later"


def test_a_job_that_came_from_elsewhere_fails_with_the_same_words(shop):
    handle = shop.app.enqueue("by.name", {"order": {"id": 7}})
    shop.app.task(name="by.name", retries=0)(shop.ship.spec.function)
    shop.app.run_worker(until_empty=True)
    (error,) = handle.status().errors
    assert error.kind == "penstock.errors.BadTask"
    assert "its parameter 'order' is annotated Order, but name 'Order' is not" in error.message


@pytest.mark.parametrize("value", [Decimal("1.5"), datetime(2024, 1, 2), b"x", {1}, (1,)], ids=repr)
def test_a_value_that_would_arrive_as_another_type_is_refused_without_an_annotation(shop, value):
    with pytest.raises(BadArguments) as caught:
        shop.untyped.enqueue(value)
    assert str(caught.value) == (
        f"shop_of_types.untyped: argument 'value': {type(value).__name__} is not one of JSON's own "
        "types, and no annotation says how to read it back; annotate the parameter, or convert the "
        "value to None, bool, int, float, str, list or dict"
    )
