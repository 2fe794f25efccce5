"""What a task needs beside its payload: found, planned, and refused where it cannot be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from penstock.core.injection import Depends
from penstock.core.signature import Payload, Signature
from penstock.errors import BadArguments, BadHook, BadTask

if TYPE_CHECKING:
    from typing import Any as Unknown


class Injected:
    """Stands for the class that the worker fills in."""


def first() -> str:
    return "first"


def second(ctx: Injected, of: str = Depends(first)) -> Iterator[str]:
    yield "second"


def third(of: Annotated[str, Depends(second)], also: str = Depends(first)) -> str:
    return "third"


async def later() -> str:
    return "later"


def signature(function: Any) -> Signature:
    return Signature.of(function, "work", inject=Injected)


def made_by(function: Any) -> list[Any]:
    return [step.maker for step in signature(function).plan.steps]


def test_a_dependency_is_no_part_of_the_payload():
    def work(id: int, db: str = Depends(first), *, other: Annotated[str, Depends(later)]) -> None:
        pass

    task = signature(work)

    assert task.encode((5,), {}) == b'{"id":5}'
    assert str(task) == "(id: int)"
    assert dict(task.plan.wanted) == {"db": first, "other": later}


@pytest.mark.parametrize("given", [{"db": 1}, {"id": 1, "db": 1}])
def test_a_caller_does_not_pass_a_dependency(given):
    def work(id: int = 0, db: str = Depends(first)) -> None: ...

    with pytest.raises(BadArguments, match="'db' is filled in by the worker"):
        signature(work).encode((), given)
    with pytest.raises(BadArguments, match="'db' is filled in by the worker"):
        signature(work).encode_object(given)


def test_what_is_needed_is_planned_before_who_needs_it_and_once():
    def work(a: str = Depends(third), b: str = Depends(first)) -> None: ...

    assert made_by(work) == [first, second, third]


def test_a_class_can_be_a_dependency():
    class Client:
        def __init__(self, url: str = "x", of: str = Depends(first)) -> None: ...

    @dataclass
    class Settings:
        debug: bool = False

    def work(client: Client = Depends(Client), settings: Settings = Depends(Settings)) -> None: ...

    assert made_by(work) == [first, Client, Settings]


def test_a_call_is_filled_wherever_its_parameters_stand():
    def by_name(id: int, db: str = Depends(first)) -> None: ...

    def by_place(db: Annotated[str, Depends(first)], id: int, /, *rest: int) -> None: ...

    def whole(payload: Payload, db: str = Depends(first)) -> None: ...

    def crowded(id: int, db: str = Depends(first), *rest: int) -> None: ...

    def filled(function: Any, payload: bytes) -> Any:
        task = signature(function)
        return task.fill(task.decode(payload), {first: "made"}, task.plan)

    assert filled(by_name, b'{"id":5}') == ((), {"id": 5, "db": "made"})
    assert filled(by_place, b'{"id":5,"rest":[6]}') == (("made", 5, 6), {})
    assert filled(whole, b'{"a":1}') == ((), {"payload": {"a": 1}, "db": "made"})
    assert filled(crowded, b'{"id":5,"rest":[6]}') == ((5, "made", 6), {})


def test_a_plan_can_have_other_makers():
    def fake(of: str = Depends(later)) -> str:
        return "fake"

    def work(a: str = Depends(third)) -> None: ...

    task = signature(work)
    plan = task.plan_with({second: fake})

    assert [step.maker for step in plan.steps] == [later, fake, first, third]
    assert made_by(work) == [first, second, third]
    with pytest.raises(BadTask) as caught:
        plan.refuse_async("work")
    assert str(caught.value) == (
        "work cannot be a task: its dependency test_injection.later is async and the task is not; "
        "make the task an async def, or the dependency a plain function"
    )


def egg(of: Any = None) -> None: ...


def hen(of: Any = Depends(egg)) -> None: ...


def test_dependencies_in_a_circle_are_refused(monkeypatch):
    monkeypatch.setattr(egg, "__defaults__", (Depends(hen),))

    def work(a: Any = Depends(hen)) -> None: ...

    with pytest.raises(BadTask) as caught:
        signature(work)
    assert str(caught.value) == (
        "work cannot be a task: its dependencies go round in a circle: test_injection.hen needs "
        "test_injection.egg needs test_injection.hen"
    )


def greedy(id: int) -> None: ...


@contextmanager
def hidden() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("maker", "why"),
    [
        (
            greedy,
            "nothing fills the parameter 'id' of its dependency test_injection.greedy; give it a "
            "default, or a Depends(...) of its own",
        ),
        (
            hidden,
            "its dependency test_injection.hidden is of no use: test_injection.hidden cannot be a "
            "dependency: a decorator, such as contextmanager, hides that it yields; leave the "
            "decorator out",
        ),
        (
            partial(hidden),
            f"its dependency {partial(hidden)!r} is of no use: {partial(hidden)!r} cannot be a "
            "dependency: a decorator, such as contextmanager, hides that it yields; leave the "
            "decorator out",
        ),
    ],
)
def test_a_dependency_that_cannot_be_made_is_refused(maker, why):
    def work(a: Any = Depends(maker)) -> None: ...

    with pytest.raises(BadTask) as caught:
        signature(work)
    assert str(caught.value) == f"work cannot be a task: {why}"


def test_a_dependency_is_given_by_its_function():
    with pytest.raises(BadHook) as caught:
        Depends("text")  # type: ignore[call-overload]
    assert str(caught.value) == (
        "'text' cannot be a dependency: give the function that makes it, without calling it"
    )


def test_a_dependency_that_cannot_be_hashed_is_refused():
    @dataclass
    class Setting:
        value: str

        def __call__(self) -> str:
            return self.value

    with pytest.raises(BadHook) as caught:
        Depends(Setting("x"))
    assert str(caught.value).endswith(
        "Setting(value='x') cannot be a dependency: it cannot be hashed, so it could not be found "
        "again; give a function that calls it"
    )


def test_a_mark_inside_an_annotation_is_not_overlooked():
    def work(db: Annotated[str, Depends(first)] | None = None) -> None: ...

    with pytest.raises(BadTask) as caught:
        signature(work)
    assert str(caught.value) == (
        "work cannot be a task: its parameter 'db' has a Depends(...) deep inside its annotation; "
        "put Annotated outermost, such as Annotated[Session | None, Depends(...)]"
    )


def test_an_annotation_that_cannot_be_read_is_not_taken_for_an_argument():
    def work(db: Annotated[Unknown, Depends(first)]) -> None: ...

    with pytest.raises(BadTask, match="import those names outside TYPE_CHECKING, or give it a"):
        signature(work)


def test_a_default_needs_no_annotation_that_can_be_read():
    def work(db: Unknown = Depends(first)) -> None: ...

    assert made_by(work) == [first]


def test_a_dependency_cannot_take_any_number_of_arguments():
    def work(*db: Annotated[str, Depends(first)]) -> None: ...

    with pytest.raises(BadTask, match="cannot take any number of arguments"):
        signature(work)
