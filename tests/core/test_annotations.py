"""Annotations that are text: resolved when first used, and Any where they cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.core.signature import Payload, Signature

if TYPE_CHECKING:
    from typing import Any as Context
    from typing import Any as Unknown


class Injected:
    """Its name is the one that is imported for the type checker only."""


Injected.__name__ = "Context"


def travel(signature, *args, **kwargs):
    args, kwargs = signature.decode(signature.encode(args, kwargs), "the context")
    return args, kwargs


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


def test_a_name_that_cannot_be_resolved_is_any():
    def task(thing: Unknown, id: UUID) -> Unknown: ...

    signature = Signature.of(task, "task")
    assert travel(signature, {"a": 1}, UUID(int=1)) == (
        (),
        {"thing": {"a": 1}, "id": UUID(int=1)},
    )
    assert signature.decode_result(signature.encode_result([1])) == [1]


def test_a_context_imported_for_the_type_checker_only_is_still_injected():
    def task(ctx: Context | None, id: UUID): ...

    signature = Signature.of(task, "task", inject=Injected)
    assert travel(signature, UUID(int=1)) == ((), {"ctx": "the context", "id": UUID(int=1)})


def test_a_payload_is_found_by_its_name():
    def task(body: Payload): ...

    assert Signature.of(task, "task").encode(({"a": 1},), {}) == b'{"a":1}'


def test_a_local_class_is_found_if_the_function_uses_it():
    @dataclass
    class Local:
        id: UUID

    def task(it: Local):
        return Local

    it = Local(UUID(int=1))
    assert travel(Signature.of(task, "task"), it) == ((), {"it": it})


def test_text_is_resolved_through_partials_and_callable_objects():
    class Callable:
        def __call__(self, id: UUID): ...

    def task(other, id: UUID): ...

    one = UUID(int=1)
    assert travel(Signature.of(Callable(), "task"), one) == ((), {"id": one})
    assert travel(Signature.of(partial(task, 1), "task"), one) == ((), {"id": one})


def test_an_annotation_that_is_no_type_is_any():
    def task(a: 1 / 0, b: "two words", c: print): ...  # type: ignore[valid-type]  # noqa: F722

    assert travel(Signature.of(task, "task"), 1, [2], {"c": 3}) == (
        (),
        {"a": 1, "b": [2], "c": {"c": 3}},
    )
