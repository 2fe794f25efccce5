"""Annotations that are text: resolved when first used at the latest, else the task is refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import pytest

from penstock.core.injection import Depends
from penstock.core.signature import Payload, Signature
from penstock.errors import BadTask

if TYPE_CHECKING:
    from typing import Any as Context
    from typing import Any as Unknown


class Injected:
    """Its name is the one that is imported for the type checker only."""


Injected.__name__ = "Context"


def travel(signature, *args, **kwargs):
    args, kwargs = signature.decode(signature.encode(args, kwargs), "the context")
    return args, kwargs


def session() -> str:
    return "a session"


def test_annotations_as_text_are_resolved():
    def task(id: UUID, more: list[UUID] | None = None) -> UUID:
        return id

    signature = Signature.of(task, "task")
    one = UUID(int=1)
    assert travel(signature, one, [one]) == ((), {"id": one, "more": [one]})
    assert signature.decode_result(signature.encode_result(one)) == one


def test_a_signature_shows_text_without_quotes():
    def task(id: UUID, name: str = "x"): ...

    assert str(Signature.of(task, "task")) == "(id: UUID, name: str = 'x')"


def late(it: Late, chain: list[Late] = []) -> Late:  # noqa: B006
    return it


SIGNED_EARLY = Signature.of(late, "late")


@dataclass
class Late:
    id: UUID
    next: Later | None = None


@dataclass
class Later:
    id: UUID


def test_a_class_that_is_declared_after_its_task_is_found_at_the_first_use():
    it = Late(UUID(int=1), Later(UUID(int=2)))
    assert travel(SIGNED_EARLY, it, [it]) == ((), {"it": it, "chain": [it]})
    assert SIGNED_EARLY.decode_result(SIGNED_EARLY.encode_result(it)) == it


def test_a_type_that_is_imported_for_the_type_checker_only_is_refused_at_the_first_enqueue():
    def task(thing: Unknown, id: UUID): ...

    signature = Signature.of(task, "shop.ship")
    for call in (
        lambda: signature.encode((5, UUID(int=1)), {}),
        lambda: signature.encode_object({"thing": 5, "id": UUID(int=1)}),
        lambda: signature.decode(b'{"thing":5,"id":"00000000-0000-0000-0000-000000000001"}'),
    ):
        with pytest.raises(BadTask) as caught:
            call()
        assert str(caught.value) == (
            "shop.ship cannot be a task: its parameter 'thing' is annotated Unknown, but name "
            "'Unknown' is not defined when the program runs; import it outside `if "
            "TYPE_CHECKING:`, or define it before the task"
        )


def test_a_type_inside_of_another_that_cannot_be_found_is_refused():
    def many(things: list[Unknown] | None = None): ...

    def rest(*things: Unknown): ...

    def named(**things: Unknown): ...

    for task in (many, rest, named):
        with pytest.raises(BadTask, match="its parameter 'things' is annotated .*Unknown"):
            Signature.of(task, "task").encode((), {})


@dataclass
class Cart:
    thing: Unknown


def test_a_class_with_a_field_whose_type_cannot_be_found_is_refused():
    def task(cart: Cart): ...

    def tasks(carts: dict[str, Cart | int | None]): ...

    with pytest.raises(BadTask) as caught:
        Signature.of(task, "task").encode(({"thing": 5},), {})
    assert str(caught.value) == (
        "task cannot be a task: its parameter 'cart' is annotated Cart, but name 'Unknown' is not "
        "defined when the program runs; import it outside `if TYPE_CHECKING:`, or define it before "
        "the task"
    )
    with pytest.raises(BadTask, match="its parameter 'carts' is annotated"):
        Signature.of(tasks, "task").encode(({},), {})


def test_a_result_whose_type_cannot_be_found_is_refused_before_there_is_any_work():
    def task(id: int) -> Unknown: ...

    with pytest.raises(BadTask, match="its result is annotated Unknown, but name 'Unknown' is not"):
        Signature.of(task, "task").encode((1,), {})


def test_a_parameter_that_the_worker_fills_in_needs_no_type():
    def task(id: int, db: Unknown = Depends(session)): ...

    assert Signature.of(task, "task").encode((1,), {}) == b'{"id":1}'


def test_a_dependency_that_is_found_too_late_is_refused():
    def task(id: int, db: Session): ...

    global Session
    signature = Signature.of(task, "task")
    Session = Annotated[str, Depends(session)]  # type: ignore[misc]
    with pytest.raises(BadTask, match="'db' .* asks for a dependency and was not there yet"):
        signature.encode((1,), {})


def test_a_context_imported_for_the_type_checker_only_is_still_injected():
    def task(ctx: Context | None, id: UUID): ...

    signature = Signature.of(task, "task", inject=Injected)
    assert travel(signature, UUID(int=1)) == ((), {"ctx": "the context", "id": UUID(int=1)})


def test_a_payload_is_found_by_its_name():
    def task(body: Payload): ...

    assert Signature.of(task, "task").encode(({"a": 1},), {}) == b'{"a":1}'


def test_a_local_class_is_found():
    @dataclass
    class Local:
        id: UUID

    def task(it: Local, more: list[Local] | None = None) -> Local:
        return it

    it = Local(UUID(int=1))
    signature = Signature.of(task, "task")
    assert travel(signature, it, [it]) == ((), {"it": it, "more": [it]})
    assert signature.decode_result(signature.encode_result(it)) == it


def test_a_local_class_hides_one_of_the_module_with_its_name():
    @dataclass
    class Late:
        id: int

    def task(it: Late): ...

    assert travel(Signature.of(task, "task"), Late(5)) == ((), {"it": Late(5)})


def test_a_class_beside_a_static_method_is_found():
    class Shop:
        @dataclass
        class Order:
            id: UUID

        @staticmethod
        def task(it: Order): ...

        signature = Signature.of(task, "task")

    it = Shop.Order(UUID(int=1))
    assert travel(Shop.signature, it) == ((), {"it": it})


def test_a_local_class_may_be_declared_after_its_task():
    def task(it: Local): ...

    signature = Signature.of(task, "task")

    @dataclass
    class Local:
        id: UUID

    assert travel(signature, Local(UUID(int=1))) == ((), {"it": Local(UUID(int=1))})


def made(*, uses_it: bool) -> tuple[Signature, type]:
    """A task, and the local class below it that only code outside of here enqueues."""

    def used(it: Local):
        return Local

    def unused(it: Local): ...

    signature = Signature.of(used if uses_it else unused, "task")

    @dataclass
    class Local:
        id: UUID

    return signature, Local


def test_a_local_class_after_its_task_is_found_from_elsewhere_if_the_function_uses_it():
    signature, local = made(uses_it=True)
    assert travel(signature, local(UUID(int=1))) == ((), {"it": local(UUID(int=1))})


def test_a_local_class_after_its_task_is_refused_from_elsewhere_otherwise():
    signature, local = made(uses_it=False)
    with pytest.raises(BadTask, match="name 'Local' is not defined .* or define it before the"):
        signature.encode((local(UUID(int=1)),), {})


def test_text_is_resolved_through_partials_and_callable_objects():
    class Callable:
        def __call__(self, id: UUID): ...

    def task(other, id: UUID): ...

    one = UUID(int=1)
    assert travel(Signature.of(Callable(), "task"), one) == ((), {"id": one})
    assert travel(Signature.of(partial(task, 1), "task"), one) == ((), {"id": one})


def test_an_annotation_that_is_not_a_type_is_refused_at_the_declaration():
    def words(b: "the recipient"): ...  # type: ignore[valid-type]  # noqa: F722

    def sum(a: 1 / 0): ...  # type: ignore[valid-type]

    def parts(a: UUID[int]): ...  # type: ignore[type-arg]

    for task, why in [
        (words, "its parameter 'b' is annotated 'the recipient', which is not a type (SyntaxError"),
        (sum, "its parameter 'a' is annotated 1 / 0, which is not a type (ZeroDivisionError"),
        (parts, "its parameter 'a' is annotated UUID[int], which is not a type (TypeError"),
    ]:
        with pytest.raises(BadTask) as caught:
            Signature.of(task, "task")
        assert why in str(caught.value)
        assert str(caught.value).endswith("; annotate it with one, or leave the annotation out")


def test_an_annotation_that_is_an_object_takes_jsons_own_types():
    def task(c: print): ...  # type: ignore[valid-type]

    assert travel(Signature.of(task, "task"), {"c": 3}) == ((), {"c": {"c": 3}})
