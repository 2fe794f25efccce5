"""Calls as JSON: binding, defaults, the whole body, injection, results, and every refusal."""

import functools
import json
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Optional, TypedDict, Unpack
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.signature import LIMIT, Payload, Signature, encode_plain
from penstock.errors import (
    BadArguments,
    BadPayload,
    BadTask,
    NotAnObject,
    PayloadTooLarge,
    Unencodable,
)


class Context:
    """Stands for penstock.Context, which the core does not know."""


def sign(function, inject=Context):
    return Signature.of(function, "mail.send", inject=inject)


def travel(function, *args, **kwargs):
    """Enqueue and run: what the function returns for the decoded call."""
    signature = sign(function)
    args, kwargs = signature.decode(signature.encode(args, kwargs), "the context")
    return function(*args, **kwargs)


def send(to: str, body: str = "hello"):
    return to, body


# --- what is stored -----------------------------------------------------------------------------


def test_arguments_are_one_json_object_by_parameter_name():
    assert sign(send).encode(("a@b.c",), {"body": "hi"}) == b'{"to":"a@b.c","body":"hi"}'


def test_only_what_was_given_is_stored():
    assert sign(send).encode(("a@b.c",), {}) == b'{"to":"a@b.c"}'


def test_nothing_given_is_an_empty_object():
    signature = sign(lambda: 1)
    assert signature.encode((), {}) == b"{}"
    assert signature.decode(b"{}") == ((), {})


def test_args_and_kwargs_are_nested_under_their_own_names():
    def task(first: int, *rest: int, flag: bool = False, **options: str):
        return first, rest, flag, options

    payload = sign(task).encode((1, 2, 3), {"color": "red", "flag": True})
    assert json.loads(payload) == {
        "first": 1,
        "rest": [2, 3],
        "flag": True,
        "options": {"color": "red"},
    }
    assert travel(task, 1, 2, 3, color="red", flag=True) == (1, (2, 3), True, {"color": "red"})
    assert sign(task).encode((1,), {}) == b'{"first":1}'


def test_a_keyword_may_have_the_name_of_a_positional_only_parameter():
    def task(a, /, **options):
        return a, options

    assert json.loads(sign(task).encode((1,), {"a": 2, "options": 3})) == {
        "a": 1,
        "options": {"a": 2, "options": 3},
    }
    assert travel(task, 1, a=2, options=3) == (1, {"a": 2, "options": 3})


def test_every_kind_of_parameter_comes_back():
    def task(a: int, /, b: int, c: int = 3, *rest: int, d: int, e: int = 5, **more: int):
        return a, b, c, rest, d, e, more

    assert travel(task, 1, 2, d=4) == (1, 2, 3, (), 4, 5, {})
    assert travel(task, 1, b=2, d=4, z=9) == (1, 2, 3, (), 4, 5, {"z": 9})
    assert travel(task, 1, 2, 30, 31, 32, d=4, e=50) == (1, 2, 30, (31, 32), 4, 50, {})


def test_a_gap_before_a_positional_argument_takes_its_default():
    def task(a=1, b=2, /, c=3, *rest):
        return a, b, c, rest

    signature = sign(task)
    assert task(*signature.decode(b'{"b":5}')[0]) == (1, 5, 3, ())
    args, kwargs = signature.decode(b'{"rest":[9]}')
    assert task(*args, **kwargs) == (1, 2, 3, (9,))


def test_keyword_only_parameters_are_not_given_by_place():
    def task(a, *, b):
        return a, b

    assert travel(task, 1, b=2) == (1, 2)
    with pytest.raises(BadArguments, match="too many positional arguments"):
        sign(task).encode((1, 2), {})


@pytest.mark.parametrize("name", ["self", "cls", "args", "kwargs", "type", "__x", "_y", "größe"])
def test_any_name_may_be_a_parameter(name):
    scope: dict[str, Any] = {}
    exec(f"def task({name}: int): return {name}", scope)
    assert travel(scope["task"], 7) == 7
    assert json.loads(sign(scope["task"]).encode((), {name: 7})) == {name: 7}


def test_kwargs_may_be_typed_one_by_one():
    class Options(TypedDict, total=False):
        at: datetime

    def task(**options: Unpack[Options]):
        return options

    assert travel(task, at=datetime(2024, 1, 2)) == {"at": datetime(2024, 1, 2)}
    with pytest.raises(BadArguments, match="Options has no key 'by'"):
        sign(task).encode((), {"by": 1})


def test_partials_methods_and_wrapped_functions_have_signatures():
    class Mailer:
        def send(self, to: UUID):
            return to

        def __call__(self, to: UUID):
            return to

    @functools.wraps(send)
    def wrapped(*args, **kwargs):
        return send(*args, **kwargs)

    one = UUID(int=1)
    assert travel(Mailer().send, one) == one
    assert travel(Mailer(), one) == one
    assert travel(functools.partial(Mailer().send, to=one)) == one
    assert travel(wrapped, "a") == ("a", "hello")


# --- a wrong call -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b", "c"), {}, "too many positional arguments"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"cc": "b"}, "got an unexpected keyword argument 'cc'"),
    ],
)
def test_a_call_that_does_not_bind_is_refused_in_pythons_words(args, kwargs, why):
    with pytest.raises(BadArguments) as caught:
        sign(send).encode(args, kwargs)
    assert str(caught.value) == f"mail.send: {why}; it takes (to: str, body: str = 'hello')"
    assert isinstance(caught.value, TypeError)


@dataclass
class User:
    name: str
    tags: list[str]


make_user: Any = User  # with fields of any type


def deliver(to: str = "", user: User | None = None, numbers: dict[int, float] | None = None):
    return to, user, numbers


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"to": 5}, "argument 'to': Expected str, got int"),
        ({"to": None}, "argument 'to': Expected str, got NoneType"),
        ({"to": UUID(int=1)}, "argument 'to': Expected str, got UUID"),
        ({"to": datetime(2024, 1, 1)}, "argument 'to': Expected str, got datetime"),
        ({"to": b"x"}, "argument 'to': Expected str, got bytes"),
        ({"user": make_user("a", [5])}, "argument 'user'.tags[0]: Expected str, got int"),
        (
            {"user": make_user("a", [UUID(int=1)])},
            "argument 'user'.tags[0]: Expected str, got UUID",
        ),
        ({"user": {"name": "a"}}, "argument 'user': Object missing required field tags"),
        ({"user": {"name": "a", "tags": [], "age": 1}}, "argument 'user': User has no field 'age'"),
        ({"numbers": {"a": 1}}, "argument 'numbers' key: Expected int, got str"),
        ({"numbers": {1: "a"}}, "argument 'numbers'[...]: Expected float, got str"),
    ],
)
def test_a_value_that_does_not_fit_its_annotation_is_refused_with_its_place(kwargs, why):
    with pytest.raises(BadArguments) as caught:
        sign(deliver).encode((), kwargs)
    assert str(caught.value) == f"mail.send: {why}"


def test_text_is_not_taken_for_bytes():
    def task(data: bytes):
        return data

    with pytest.raises(BadArguments, match="argument 'data': Expected bytes, got str"):
        sign(task).encode(("abcd",), {})
    assert travel(task, b"\x00\xff") == b"\x00\xff"


def test_a_value_may_be_given_in_the_json_form_of_its_type():
    def task(at: datetime, user: User, ids: tuple[UUID, ...] = ()):
        return at, user, ids

    one = UUID(int=1)
    assert travel(task, "2024-01-02T03:04:05", {"name": "a", "tags": ["b"]}, [str(one)]) == (
        datetime(2024, 1, 2, 3, 4, 5),
        User("a", ["b"]),
        (one,),
    )


def test_an_int_is_fine_for_a_float_while_it_stays_exact():
    def task(x: float):
        return x

    assert travel(task, 3) == 3.0
    assert isinstance(travel(task, 3), float)
    with pytest.raises(Unencodable, match="argument 'x'.* 9007199254740993 would arrive as 900"):
        sign(task).encode((2**53 + 1,), {})


# --- values without a JSON form -----------------------------------------------------------------


class Opaque:
    pass


def anything(value):
    return value


def nested(depth):
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def circle():
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        (Opaque(), "", "a value of type Opaque has no JSON form"),
        ({"a": [1, Opaque()]}, "['a'][1]", "a value of type Opaque has no JSON form"),
        (make_user("a", [Opaque()]), ".tags[0]", "a value of type Opaque has no JSON form"),
        (1j, "", "a value of type complex has no JSON form"),
        (math.nan, "", "JSON has no nan"),
        ([1.0, math.inf], "[1]", "JSON has no inf"),
        ({"a": {"b": -math.inf}}, "['a']['b']", "JSON has no -inf"),
        (make_user("a", [math.nan]), ".tags[0]", "JSON has no nan"),
        ("\ud800", "", r"'\ud800' is not valid Unicode text (a lone surrogate)"),
        (["a", "b\udfff"], "[1]", r"'b\udfff' is not valid Unicode text (a lone surrogate)"),
        ({"\ud800": 1}, r" key '\ud800'", r"'\ud800' is not valid Unicode text (a lone surrogate)"),
        (
            {1: 2},
            "",
            "the key 1 would not come back: in JSON, keys are text (declare dict[int, ...] or "
            "use text)",
        ),
        (
            [{"a": {1: 2, "1": 3}}],
            "[0]['a']",
            "the key 1 would not come back: in JSON, keys are text (declare dict[int, ...] or "
            "use text)",
        ),
        ({None: 2}, "", "the key None has no form as text"),
        pytest.param(circle(), None, "it is nested too deeply, or holds itself", id="circle"),
        pytest.param(nested(100_000), None, "it is nested too deeply", id="deep"),
        pytest.param(10**5000, "", "Exceeds the limit (4300 digits)", id="long"),
    ],
)
def test_what_has_no_json_form_is_refused_with_its_place(value, where, why):
    with pytest.raises(Unencodable) as caught:
        sign(anything).encode((value,), {})
    error = caught.value
    assert error.task == "mail.send"
    assert error.where == ("the arguments" if where is None else f"argument 'value'{where}")
    assert error.why.startswith(why)
    assert str(error) == (
        f"mail.send: {error.where} cannot be stored as JSON: {error.why}; "
        "pass plain data, a dataclass, a msgspec Struct or a pydantic model"
    )


def test_not_a_number_is_refused_where_a_float_is_declared():
    def task(x: float, y: float | None = None, z: list[float] | None = None):
        return x

    for kwargs in ({"x": math.nan}, {"x": 1, "y": math.inf}, {"x": 1, "z": [1, math.nan]}):
        with pytest.raises(Unencodable, match="JSON has no"):
            sign(task).encode((), kwargs)


def test_none_beside_a_float_is_no_fault():
    def task(a: list[float | None], b):
        return a, b

    assert travel(task, (None, 1.5), None) == ([None, 1.5], None)


@settings(deadline=None)
@given(st.integers())
def test_integers_of_any_size_are_exact(number):
    assert travel(anything, number * 2**70) == number * 2**70


def test_plain_json_comes_back_where_anything_is_declared():
    def task(value: Any):
        return value

    at = datetime(2024, 1, 2)
    assert travel(task, at) == "2024-01-02T00:00:00"
    assert travel(task, (1, {2}, User("a", []))) == [1, [2], {"name": "a", "tags": []}]
    assert travel(task, OrderedDict(a=1)) == {"a": 1}


def test_a_parameter_without_annotation_takes_jsons_own_types():
    value: Any = {"a": [None, True, 1, 1.5, "x", {"b": []}]}
    assert travel(anything, value) == value


class Size(StrEnum):
    SMALL = "s"


class Level(IntEnum):
    LOW = 1


class Email(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "where", "got"),
    [
        (datetime(2024, 1, 2), "", "datetime"),
        (UUID(int=1), "", "UUID"),
        ((1, 2), "", "tuple"),
        ({1}, "", "set"),
        (b"x", "", "bytes"),
        (User("a", []), "", "User"),
        ({"a": [1, (2,)]}, "['a'][1]", "tuple"),
        (Decimal("1.50"), "", "Decimal"),
        (Path("a"), "", "PosixPath"),
        # These are equal to what would come back, and yet they are not the same.
        (Size.SMALL, "", "Size"),
        ([Level.LOW], "[0]", "Level"),
        (Email("a"), "", "Email"),
        (OrderedDict(a=1), "", "OrderedDict"),
        (defaultdict(int, a=1), "", "defaultdict"),
    ],
    ids=repr,
)
def test_a_parameter_without_annotation_refuses_anything_else_with_what_to_do(value, where, got):
    with pytest.raises(BadArguments) as caught:
        sign(anything).encode((value,), {})
    assert str(caught.value) == (
        f"mail.send: argument 'value'{where}: {got} is not one of JSON's own types, and no "
        "annotation says how to read it back; annotate the parameter, or convert the value to "
        "None, bool, int, float, str, list or dict"
    )


@pytest.mark.parametrize(
    ("hint", "value", "where", "got"),
    [
        (dict, {"since": datetime(2024, 1, 2)}, "['since']", "datetime"),
        (list, [Decimal("1.50")], "[0]", "Decimal"),
        (list, [(1, 2)], "[0]", "tuple"),
        (tuple, (1, {2}), "[1]", "set"),
        (set, {Size.SMALL}, "", "Size"),
        (Mapping, {"a": b"x"}, "['a']", "bytes"),
        (Sequence, [UUID(int=1)], "[0]", "UUID"),
        (Iterable, [UUID(int=1)], "[0]", "UUID"),
        (dict | None, {"a": UUID(int=1)}, "['a']", "UUID"),
        (dict[str, list], {"a": [UUID(int=1)]}, "['a'][0]", "UUID"),
        (Opaque, datetime(2024, 1, 2), "", "datetime"),
        (list[Opaque], [Size.SMALL], "[0]", "Size"),
    ],
    ids=repr,
)
def test_what_a_container_does_not_say_is_taken_as_if_it_had_no_annotation(hint, value, where, got):
    def task(value):
        return value

    task.__annotations__ = {"value": hint}
    with pytest.raises(BadArguments) as caught:
        sign(task).encode((value,), {})
    assert f"argument 'value'{where}: {got} is not one of JSON's own types" in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dict, {"a": [None, True, 1, 1.5, "x", {"b": []}]}),
        (list, [{"a": 1}, ["b"]]),
        (tuple, (1, "a", None)),
        (set, {"a"}),
        (frozenset, frozenset({1})),
        (Sequence, [1]),
        (Mapping, {"a": [1]}),
        (Iterable, [1]),
        (list | dict | None, {"a": 1}),
    ],
    ids=repr,
)
def test_plain_json_comes_back_in_a_container_that_does_not_say_what_is_in_it(hint, value):
    def task(value):
        return value

    task.__annotations__ = {"value": hint}
    back = travel(task, value)
    assert type(back) is type(value)
    assert back == value


def test_a_result_may_be_of_any_class_where_no_annotation_says_one():
    def task() -> dict:
        return {}

    def typed() -> Box:
        return Box({})

    for signature in (sign(task), sign(lambda: 1), sign(typed)):
        result = signature.encode_result({"at": datetime(2024, 1, 2), "size": Size.SMALL})
        assert signature.decode_result(result) == {"at": "2024-01-02T00:00:00", "size": "s"}
    box = Box({"size": Size.SMALL})
    assert sign(typed).decode_result(sign(typed).encode_result(box)) == box


@dataclass
class Box:
    content: dict


def test_a_value_nested_deeply_is_not_refused_for_it():
    assert travel(anything, nested(300)) == nested(300)


def test_a_key_without_annotation_is_text_itself():
    with pytest.raises(Unencodable, match=r"the key <Size.SMALL: 's'> .*declare dict\[Size, ...\]"):
        sign(anything).encode(({Size.SMALL: 1},), {})


def test_args_and_kwargs_without_annotation_take_jsons_own_types():
    def task(*rest, **options):
        return rest, options

    assert travel(task, 1, [2], a={"b": None}) == ((1, [2]), {"a": {"b": None}})
    with pytest.raises(BadArguments, match=r"argument 'rest'\[0\]: UUID is not one of JSON's own"):
        sign(task).encode((UUID(int=1),), {})
    with pytest.raises(BadArguments, match=r"argument 'options'\['at'\]: datetime is not one of"):
        sign(task).encode((), {"at": datetime(2024, 1, 2)})


def test_a_class_that_cannot_be_read_back_gets_plain_json():
    def task(thing: Opaque, things: list[Opaque] | None = None):
        return thing, things

    assert travel(task, {"a": 1}, [{"b": 2}]) == ({"a": 1}, [{"b": 2}])
    with pytest.raises(
        Unencodable, match="argument 'thing' cannot .* a value of type Opaque has no JSON form"
    ):
        sign(task).encode((Opaque(),), {})


def test_a_value_that_would_lose_its_declared_class_is_refused():
    def task(counts: defaultdict[str, int]):
        return counts

    with pytest.raises(Unencodable, match="defaultdict would arrive as dict"):
        sign(task).encode((defaultdict(int, a=1),), {})


def test_a_payload_over_the_limit_says_both_sizes():
    signature = sign(send)
    size = len(signature.encode(("x" * 100,), {}))
    assert signature.encode(("x" * 100,), {}, limit=size)
    with pytest.raises(PayloadTooLarge) as caught:
        signature.encode(("x" * 100,), {}, limit=size - 1)
    assert str(caught.value) == (
        f"mail.send: {size} bytes are over the limit of {size - 1}; "
        "store the data elsewhere and pass a reference, or raise max_payload"
    )
    with pytest.raises(PayloadTooLarge, match="over the limit of 1048576"):
        signature.encode(("x" * LIMIT,), {})


def test_a_result_over_the_limit_names_its_own_setting():
    with pytest.raises(PayloadTooLarge, match="over the limit of 5; .* or raise max_result"):
        sign(send).encode_result("x" * 10, limit=5)


# --- by name ------------------------------------------------------------------------------------


def test_an_object_by_name_is_checked_like_a_call():
    signature = sign(deliver)
    payload = signature.encode_object({"user": {"name": "a", "tags": []}, "to": "b"})
    assert deliver(**signature.decode(payload)[1]) == ("b", User("a", []), None)
    for body, why in [
        ({"to": 5}, "argument 'to': Expected str, got int"),
        ({"cc": 5}, "got an unexpected argument 'cc'; it takes (to: str = ''"),
        ({1: 5}, "got an unexpected argument 1"),
        ([], "the arguments must be a dict, not a list"),
    ]:
        with pytest.raises(BadArguments) as caught:
            signature.encode_object(body)
        assert caught.value.why.startswith(why)
    with pytest.raises(BadArguments, match="missing a required argument: 'to'; it takes"):
        sign(send).encode_object({})


def test_an_object_by_name_has_the_stored_shape():
    def task(first: int, *rest: int, **options: str):
        return first, rest, options

    signature = sign(task)
    body = {"first": 1, "rest": [2], "options": {"a": "b"}}
    args, kwargs = signature.decode(signature.encode_object(body))
    assert task(*args, **kwargs) == (1, (2,), {"a": "b"})
    with pytest.raises(BadArguments, match="argument 'options'.*Expected str, got int"):
        signature.encode_object({"first": 1, "options": {"a": 5}})


def test_an_object_by_name_may_hold_base64_for_bytes():
    def task(data: bytes):
        return data

    assert sign(task).decode(sign(task).encode_object({"data": "AP8="})) == (
        (),
        {"data": b"\0\xff"},
    )


def test_a_task_that_is_not_known_takes_any_object():
    plain: Any = encode_plain
    assert encode_plain({"a": [1, None], "at": datetime(2024, 1, 2)}, "far.away") == (
        b'{"a":[1,null],"at":"2024-01-02T00:00:00"}'
    )
    with pytest.raises(BadArguments, match="far.away: the payload must be a dict, not a list"):
        plain([], "far.away")
    with pytest.raises(Unencodable, match=r"far.away: payload\['a'\]\[0\] .* JSON has no nan"):
        encode_plain({"a": [math.nan]}, "far.away")
    with pytest.raises(Unencodable, match="the key 1 would not come back"):
        plain({1: 2}, "far.away")
    with pytest.raises(PayloadTooLarge):
        encode_plain({"a": "b"}, "far.away", limit=5)


# --- the whole body -----------------------------------------------------------------------------


def hook(payload: Payload):
    return payload


def test_a_payload_parameter_takes_the_whole_body():
    signature = sign(hook)
    assert signature.encode(({"a": 1},), {}) == b'{"a":1}'
    assert signature.encode((), {"payload": {"a": 1}}) == b'{"a":1}'
    assert signature.encode_object({"a": 1}) == b'{"a":1}'
    assert signature.decode(b'{"x":[1,{"y":null}]}') == ((), {"payload": {"x": [1, {"y": None}]}})
    assert type(travel(hook, {})) is Payload


def test_a_payload_parameter_goes_with_a_context_and_may_have_a_default():
    def task(ctx: Context, payload: Payload | None = None, /):
        return ctx, payload

    assert travel(task, {"a": 1}) == ("the context", {"a": 1})
    assert travel(task) == ("the context", {})


def test_a_subclass_of_payload_is_made_as_such():
    class Event(Payload):
        pass

    def task(event: Annotated[Event, "from outside"]):
        return event

    assert type(travel(task, {"a": 1})) is Event


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'payload'"),
        (([],), {}, "the payload must be a dict, not a list"),
        (({},), {"a": 1}, "got an unexpected keyword argument 'a'"),
    ],
)
def test_a_payload_that_is_no_dict_is_refused(args, kwargs, why):
    with pytest.raises(BadArguments, match=why):
        sign(hook).encode(args, kwargs)


def test_a_payload_with_a_bad_value_says_where():
    with pytest.raises(Unencodable, match=r"payload\['a'\] cannot be stored as JSON: JSON has no"):
        sign(hook).encode(({"a": math.nan},), {})


def test_a_payload_beside_other_parameters_is_refused_at_the_declaration():
    def task(payload: Payload, a: int, b: int = 1):
        pass

    with pytest.raises(BadTask) as caught:
        sign(task)
    assert str(caught.value) == (
        "mail.send cannot be a task: its parameter 'payload' takes the whole payload, which "
        "leaves nothing for 'a', 'b'; read them from 'payload'"
    )


def test_a_payload_or_context_cannot_be_variadic():
    def bodies(*payload: Payload):
        pass

    def contexts(**ctx: Context):
        pass

    for task in (bodies, contexts):
        with pytest.raises(BadTask, match="cannot take any number of arguments"):
            sign(task)


def test_a_function_without_a_readable_signature_is_refused():
    with pytest.raises(BadTask, match="mail.send cannot be a task: its parameters cannot be known"):
        sign(dict)


# --- injection ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hint",
    [Context, Context | None, Optional[Context], Annotated[Context, "x"]],  # noqa: UP045
)
def test_a_context_is_filled_in_and_never_stored(hint):
    def task(ctx, to):
        return ctx, to

    task.__annotations__ = {"ctx": hint, "to": str}
    assert sign(task).encode(("a",), {}) == b'{"to":"a"}'
    assert travel(task, "a") == ("the context", "a")


def test_a_context_may_stand_anywhere():
    def first(ctx: Context, /, a: int, *rest: int):
        return ctx, a, rest

    def last(a: int, *, ctx: Context | None = None, **more: int):
        return ctx, a, more

    assert travel(first, 1, 2) == ("the context", 1, (2,))
    assert travel(last, 1, b=2) == ("the context", 1, {"b": 2})


def test_a_caller_cannot_pass_the_context():
    def plain(a: int, ctx: Context):
        pass

    def general(a: int, /, ctx: Context, **more: int):
        pass

    for task in (plain, general):
        with pytest.raises(BadArguments, match="'ctx' is filled in by the worker; it takes "):
            sign(task).encode((1,), {"ctx": 2})
        with pytest.raises(BadArguments, match="'ctx' is filled in by the worker; it takes "):
            sign(task).encode_object({"a": 1, "ctx": 2})


def test_without_a_class_to_inject_nothing_is_injected():
    def task(ctx: Context):
        return ctx

    assert Signature.of(task, "x").decode(b'{"ctx":1}') == ((), {"ctx": 1})


# --- reading what is stored ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b'{"to":5,]', "JSON is malformed"),
        (b"\xff\xfe", "JSON is malformed"),
        (b'{"to":"\xff"}', "'utf-8' codec can't decode"),
        (b"hello", "JSON is malformed"),
        (b'{"to":"a"} {}', "JSON is malformed"),
        (b"[]", "it is an array"),
        (b'"x"', "it is text"),
        (b"5", "it is a number"),
        (b"5.5", "it is a number"),
        (b"true", "it is a boolean"),
        (b"null", "it is null"),
    ],
)
@pytest.mark.parametrize("function", [send, hook])
def test_what_is_no_json_object_is_named_as_such(function, payload, why):
    with pytest.raises(NotAnObject) as caught:
        sign(function).decode(payload)
    assert str(caught.value).startswith(
        f"mail.send: the stored payload is not a JSON object: {why}"
    )


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b'{"user":{"name":"a","tags":[5]}}', "argument 'user'.tags[0]: Expected str, got int"),
        (b'{"to":null}', "argument 'to': Expected str, got null"),
        (b'{"numbers":{"x":1}}', "argument 'numbers' key: Expected int, got str"),
        (b'{"user":{"name":"a"}}', "argument 'user': Object missing required field tags"),
        (b'{"to":1e999}', "argument 'to': Number out of range"),
    ],
)
def test_an_object_that_does_not_fit_says_where(payload, why):
    with pytest.raises(BadPayload) as caught:
        sign(deliver).decode(payload)
    assert type(caught.value) is BadPayload
    assert str(caught.value) == (f"mail.send: the stored arguments do not fit its signature: {why}")


def test_a_payload_nested_too_deeply_is_a_bad_payload():
    depth = 1_000_000
    payload = b'{"value":' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(BadPayload, match="nested too deeply") as caught:
        sign(anything).decode(payload)
    assert type(caught.value) is BadPayload


def test_a_number_that_no_float_can_hold_is_a_bad_payload():
    with pytest.raises(BadPayload, match="Number out of range") as caught:
        sign(anything).decode(b'{"value":1e999}')
    assert type(caught.value) is BadPayload


def test_a_keyword_given_twice_is_a_bad_payload():
    def task(a, **options):
        pass

    with pytest.raises(BadPayload, match="got multiple values for argument 'a'"):
        sign(task).decode(b'{"a":1,"options":{"a":2}}')


def test_what_a_types_own_code_raises_is_a_bad_payload():
    @dataclass
    class Picky:
        x: int

        def __post_init__(self):
            if self.x < 0:
                raise KeyError("no such x")

    def task(it: Picky):
        pass

    with pytest.raises(BadPayload, match="the arguments: KeyError: 'no such x'"):
        sign(task).decode(b'{"it":{"x":-1}}')


# --- signatures change while jobs wait ----------------------------------------------------------


def test_a_default_added_or_changed_later_applies_to_older_jobs():
    payload = sign(send).encode(("a",), {})

    def newer(to: str, body: str = "changed", cc: str | None = None):
        return to, body, cc

    args, kwargs = sign(newer).decode(payload)
    assert newer(*args, **kwargs) == ("a", "changed", None)


def test_a_parameter_added_without_default_is_named():
    def newer(to: str, cc: str):
        pass

    with pytest.raises(BadPayload) as caught:
        sign(newer).decode(sign(send).encode(("a",), {}))
    assert str(caught.value) == (
        "mail.send: the stored arguments do not fit its signature: argument 'cc' is missing; "
        "give the parameter a default while older jobs wait"
    )


def test_a_parameter_removed_is_named():
    def newer(to: str):
        pass

    with pytest.raises(BadPayload) as caught:
        sign(newer).decode(sign(send).encode(("a", "b"), {}))
    assert str(caught.value) == (
        "mail.send: the stored arguments do not fit its signature: there is no parameter 'body'; "
        "keep it, with a default, while older jobs wait"
    )


def test_a_parameter_may_change_its_place_and_kind():
    def newer(*, body: str = "", to: str):
        return to, body

    args, kwargs = sign(newer).decode(sign(send).encode(("a", "b"), {}))
    assert newer(*args, **kwargs) == ("a", "b")


def test_a_type_may_widen():
    def newer(to: str | int, body: Any = None):
        return to, body

    args, kwargs = sign(newer).decode(sign(send).encode(("a", "b"), {}))
    assert newer(*args, **kwargs) == ("a", "b")


# --- results ------------------------------------------------------------------------------------


def typed_result() -> dict[UUID, User]:
    return {}


def untyped_result(): ...


def test_a_result_comes_back_by_the_return_annotation():
    value = {UUID(int=1): User("a", ["b"])}
    signature = sign(typed_result)
    assert signature.decode_result(signature.encode_result(value)) == value


def test_a_result_without_annotation_is_plain_json():
    signature = sign(untyped_result)
    assert signature.encode_result((1, datetime(2024, 1, 2))) == b'[1,"2024-01-02T00:00:00"]'
    assert signature.decode_result(b'[1,"x"]') == [1, "x"]


@pytest.mark.parametrize("function", [typed_result, untyped_result])
def test_no_result_is_null(function):
    assert sign(function).encode_result(None) == b"null"
    assert sign(function).decode_result(b"null") is None


def test_a_result_that_is_not_what_was_declared_is_kept_as_plain_json():
    signature = sign(typed_result)
    for value in (5, "x", [1, 2], {"a": 1}, UUID(int=1)):
        plain = json.loads(json.dumps(value, default=str))
        assert signature.decode_result(signature.encode_result(value)) == plain


@pytest.mark.parametrize("function", [typed_result, untyped_result])
@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        (Opaque(), "result", "a value of type Opaque has no JSON form"),
        ({"a": [math.nan]}, "result['a'][0]", "JSON has no nan"),
        ({1: 2}, "result", "the key 1 would not come back"),
        ({"a": {1: 2}}, "result['a']", "the key 1 would not come back"),
    ],
)
def test_a_result_without_a_json_form_is_refused_with_its_place(function, value, where, why):
    with pytest.raises(Unencodable) as caught:
        sign(function).encode_result(value)
    assert caught.value.where == where
    assert caught.value.why.startswith(why)


def test_a_result_over_the_limit_is_refused():
    with pytest.raises(PayloadTooLarge, match="12 bytes are over the limit of 10"):
        sign(untyped_result).encode_result("x" * 10, limit=10)


def test_a_stored_result_that_is_no_json_is_named():
    with pytest.raises(BadPayload, match="the stored result is not JSON: JSON is malformed"):
        sign(typed_result).decode_result(b"what?")


# --- the machinery ------------------------------------------------------------------------------


def test_what_msgspec_raised_is_the_cause():
    with pytest.raises(BadPayload) as caught:
        sign(send).decode(b'{"to":5}')
    assert isinstance(caught.value.__cause__, msgspec.ValidationError)


def test_a_signature_is_written_as_a_caller_sees_it():
    def task(a: int, ctx: Context, *, b: str = "x"):
        pass

    assert str(sign(task)) == "(a: int, *, b: str = 'x')"


def test_a_class_whose_equality_fails_is_walked_through():
    class Strange(msgspec.Struct, eq=False):
        x: int

    class Raises(msgspec.Struct):
        x: int

        def __eq__(self, other):
            raise ZeroDivisionError

    def task(a: Strange, b: Raises):
        return a.x, b.x

    assert travel(task, Strange(1), Raises(2)) == (1, 2)


def test_the_core_imports_no_pydantic():
    import subprocess

    code = "import sys, penstock.core.signature; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
