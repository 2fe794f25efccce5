"""Types through JSON: each supported one comes back equal and of its class, or is refused."""

import collections
import dataclasses
import decimal
import enum
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import GenericAlias, MappingProxyType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.signature import Signature
from penstock.errors import BadArguments, BadPayload, Unencodable


def signature_for(hint):
    def task(value):
        return value

    task.__annotations__ = {"value": hint, "return": hint}
    return Signature.of(task, "task")


def travel(hint, value):
    """The value as a task with this annotation gets it."""
    signature = signature_for(hint)
    _, kwargs = signature.decode(signature.encode((value,), {}))
    return kwargs["value"]


def assert_same(back, value):
    """Equal and of the same class all the way down."""
    assert type(back) is type(value)
    assert back == value
    if isinstance(value, dict):
        for pair in zip(sorted(back, key=repr), sorted(value, key=repr), strict=True):
            assert_same(*pair)
        for key in value:
            assert_same(back[key], value[key])
    elif isinstance(value, (list, tuple)):
        for pair in zip(back, value, strict=True):
            assert_same(*pair)
    elif isinstance(value, datetime):
        assert back.utcoffset() == value.utcoffset()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(enum.StrEnum):
    SMALL = "s"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Inner:
    at: datetime
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True)
class Outer:
    id: UUID
    inner: Inner | None
    _hidden: int = 0


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Compact(msgspec.Struct, array_like=True):
    a: int
    b: str


class Row(NamedTuple):
    id: int
    price: Decimal = Decimal(0)


class Settings(TypedDict):
    name: str
    at: NotRequired[date]


class Model(pydantic.BaseModel):
    name: str
    at: datetime | None = None
    path: Path = Path("x")
    children: list["Model"] = []


class Other(pydantic.BaseModel):
    number: int


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    from_: str = pydantic.Field(alias="from")
    at: datetime


class Holder(msgspec.Struct):
    model: Model
    path: Path


T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Email(str):
    __slots__ = ()


UserId = NewType("UserId", UUID)

# --- properties ---------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"))
datetimes = st.one_of(
    st.datetimes(),
    st.datetimes(
        timezones=st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
    ),
)
decimals = st.decimals(allow_nan=False)
inners = st.builds(Inner, at=datetimes, tags=st.sets(texts))
outers = st.builds(Outer, id=st.uuids(), inner=st.none() | inners, _hidden=st.integers())
points = st.builds(
    Point, x=st.floats(allow_nan=False, allow_infinity=False), y=st.integers(-5, 5).map(float)
)
rows = st.builds(Row, id=st.integers(), price=decimals)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, json_values),
    (str, texts),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (None, st.none()),
    (bytes, st.binary()),
    (datetime, datetimes),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, decimals),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Size, st.sampled_from(Size)),
    (Path, st.lists(st.sampled_from(["a", "b c", "ü"])).map(lambda parts: Path(*parts))),
    (Email, texts.map(Email)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Inner, inners),
    (Outer, outers),
    (Point, points),
    (Row, rows),
]


@st.composite
def typed_values(draw):
    """A type made of supported ones, with a value of it."""
    scalar, values = draw(st.sampled_from(SCALARS))
    hint: Any = scalar
    hashable = hint not in (Any, Inner, Outer)
    as_key = hint in (str, int, UUID, date, Color, Level, Path, Email)
    match draw(
        st.sampled_from(["bare", "list", "tuple", "pair", "dict", "set", "optional", "key"])
    ):
        case "list":
            return GenericAlias(list, (hint,)), draw(st.lists(values, max_size=3))
        case "tuple":
            return GenericAlias(tuple, (hint, ...)), tuple(draw(st.lists(values, max_size=3)))
        case "pair":
            return GenericAlias(tuple, (int, hint)), (draw(st.integers()), draw(values))
        case "dict":
            return GenericAlias(dict, (str, hint)), draw(st.dictionaries(texts, values, max_size=3))
        case "set" if hashable:
            return GenericAlias(frozenset, (hint,)), frozenset(draw(st.lists(values, max_size=3)))
        case "optional":
            return Optional[hint], draw(st.none() | values)  # noqa: UP045
        case "key" if as_key:
            return GenericAlias(dict, (hint, int)), draw(
                st.dictionaries(values, st.integers(), max_size=3)
            )
        case _:
            return hint, draw(values)


@settings(deadline=None)
@given(typed_values())
def test_every_supported_value_comes_back_the_same(case):
    hint, value = case
    back = travel(hint, value)
    assert_same(back, value)
    signature = signature_for(hint)
    assert_same(signature.decode_result(signature.encode_result(value)), value)


@settings(deadline=None)
@given(typed_values(), typed_values())
def test_any_value_is_either_refused_by_name_or_readable(wanted, given):
    (hint, _), (_, value) = wanted, given
    signature = signature_for(hint)
    try:
        payload = signature.encode((value,), {})
    except (BadArguments, Unencodable):
        return
    signature.decode(payload)
    assert signature.encode_result(value)


@settings(deadline=None)
@given(json_values)
def test_json_comes_back_the_same_without_annotation(value):
    assert_same(travel(Any, value), value)


# --- one by one ---------------------------------------------------------------------------------

MODEL = Model(name="a", at=datetime(2024, 1, 2, tzinfo=UTC), children=[Model(name="b")])


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Rights, Rights.READ | Rights.WRITE),
        (PurePosixPath, PurePosixPath("/a/b")),
        (PureWindowsPath, PureWindowsPath("c:\\a")),
        (set[int], {1, 2, 3}),
        (bytearray, bytearray(b"\x00x")),
        (Compact, Compact(1, "a")),
        (Renamed, Renamed("a")),
        (Cat | Dog, Dog("a")),
        (list[Cat | Dog | None], [Cat(9), None, Dog("b")]),
        (Settings, {"name": "a", "at": date(2024, 1, 2)}),
        (Settings, {"name": "a"}),
        (list[Settings], [{"name": "a"}]),
        (Box[datetime], Box(datetime(2024, 1, 2))),
        (dict[str, list[tuple[int, Row]]], {"a": [(1, Row(2, Decimal("3.10")))]}),
        (UserId, UUID(int=1)),
        (Annotated[int, msgspec.Meta(ge=0)], 5),
        (Annotated[list[Path], "note"], [Path("a")]),
        (Outer | None, Outer(UUID(int=1), Inner(datetime(2024, 1, 1)), 5)),
        (int | str | list[int], [1]),
        (int | float, 1),
        (float | int, 1),
        (int | float, 1.0),
        (str | datetime, "text"),
        (datetime | str, datetime(2024, 1, 2)),
        (datetime | str, "text"),
        (datetime | date | None, date(2024, 1, 2)),
        (date | datetime, datetime(2024, 1, 2, 3)),
        (UUID | Decimal, Decimal("1.5")),
        (Inner | Point, Point(1.0)),
        (Inner | Point | None, Inner(datetime(2024, 1, 2), {"a"})),
        (Point | dict[str, int], {"a": 1}),
        (list[int] | set[str], {"a"}),
        (str | Path, "a/b"),
        (str | Path | None, None),
        (int | Path, Path("a")),
        (Path | list[Path], [Path("a"), Path("b")]),
        (Model, MODEL),
        (Model | None, MODEL),
        (list[Model], [MODEL, MODEL]),
        (dict[str, Model], {"a": MODEL}),
        (Model | int | None, MODEL),
        (Model | int | None, 5),
        (Other | Model, MODEL),
        (list[Model | Other], [MODEL, Other(number=1)]),
        (dict[str, list[Model | str | None]], {"a": [MODEL, "x", None]}),
        (Aliased, Aliased.model_validate({"from": "a", "at": datetime(2024, 1, 2)})),
        (Holder, Holder(MODEL, Path("p"))),
        (tuple[()], ()),
        (Decimal, Decimal("1E+3")),
        (Decimal, Decimal("-Infinity")),
        (timedelta, timedelta.max),
        (timedelta, timedelta.min),
        (datetime, datetime.max),
        (datetime, datetime.min),
    ],
    ids=repr,
)
def test_a_value_of_a_supported_type_comes_back_the_same(hint, value):
    assert_same(travel(hint, value), value)


def test_a_decimal_that_is_no_number_comes_back():
    assert str(travel(Decimal, Decimal("sNaN"))) == "sNaN"
    assert str(travel(list[Decimal], [Decimal("NaN123")])[0]) == "NaN123"


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Iterable[date], (date(2024, 1, 2),), [date(2024, 1, 2)]),
        (Iterable, {1}, [1]),
        (Sequence[int], range(3), [0, 1, 2]),
        (Sequence[int], collections.deque([1, 2]), [1, 2]),
        (Mapping[str, int], MappingProxyType({"a": 1}), {"a": 1}),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], [1, 1, 2], {1, 2}),
        (set[tuple[int, int]], [[1, 2]], {(1, 2)}),
        (float, 3, 3.0),
        (int, Level.HIGH, 2),
        (str, Size.SMALL, "s"),
        (str, Email("a"), "a"),
        (Email, "a", Email("a")),
        (Color, "red", Color.RED),
        (Path, "a/b", Path("a/b")),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (Decimal, 5, Decimal(5)),
        (Decimal, "1.50", Decimal("1.50")),
        (Decimal, 0.1, Decimal("0.1")),
        (timedelta, "PT5S", timedelta(seconds=5)),
        (Point, {"x": 1}, Point(1.0)),
        (Renamed, {"firstName": "a"}, Renamed("a")),
        (Row, [1, "2.5"], Row(1, Decimal("2.5"))),
        (Model, {"name": "a"}, Model(name="a")),
        (str | Path, Path("a/b"), "a/b"),
        (Path | str | None, Path("a/b"), "a/b"),
        (Path | str | int, Path("a/b"), "a/b"),
        (str | os.PathLike[str], Path("a/b"), "a/b"),
        (os.PathLike[str], Path("a/b"), Path("a/b")),
        (object, {"a": (1, Color.RED)}, {"a": [1, "red"]}),
        (TypeVar("Free"), (1,), [1]),
        (Any, Path("a"), "a"),
        (Any, Email("a"), "a"),
        (Any, timedelta(seconds=1), "PT1S"),
        (Any, b"\x00", "AA=="),
        (Any, MODEL, MODEL.model_dump(mode="json")),
        (dict[str, Any], {"a": (1, UUID(int=1))}, {"a": [1, str(UUID(int=1))]}),
        (list[Any], ({"a": Point(1.0)},), [{"a": {"x": 1.0, "y": 0.0}}]),
        (dict[str, Any], {"a": {1, 2} - {2}}, {"a": [1]}),
        (Any, uuid.UUID(int=1), str(UUID(int=1))),
    ],
    ids=repr,
)
def test_what_stands_for_a_value_arrives_as_declared(hint, value, expected):
    assert_same(travel(hint, value), expected)


def test_subclasses_of_plain_types_are_taken_for_them():
    class Stamp(datetime):
        pass

    class Delta(timedelta):
        pass

    class Money(Decimal):
        pass

    class Name(str):
        __slots__ = ()

    class Blob(bytes):
        pass

    class Small(Inner):
        pass

    assert_same(travel(datetime, Stamp(2024, 1, 2, tzinfo=UTC)), datetime(2024, 1, 2, tzinfo=UTC))
    assert_same(travel(timedelta, Delta(days=1, microseconds=1)), timedelta(days=1, microseconds=1))
    assert_same(travel(Decimal, Money("1.50")), Decimal("1.50"))
    assert_same(travel(str, Name("a")), "a")
    assert_same(travel(dict[str, int], {Name("a"): 1}), {"a": 1})
    assert_same(travel(bytes, Blob(b"\xff")), b"\xff")
    assert_same(travel(Inner, Small(datetime(2024, 1, 2))), Inner(datetime(2024, 1, 2)))


def test_an_aware_datetime_keeps_its_instant_and_offset():
    for fold in (0, 1):
        at = datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
        back = travel(datetime, at)
        assert back.astimezone(UTC) == at.astimezone(UTC)
        assert back.utcoffset() == at.utcoffset()


class StandIn(type):
    """What libraries that freeze time do: every datetime is one of theirs."""

    def __instancecheck__(cls, value):
        return isinstance(value, datetime)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, datetime)


class FakeDatetime(datetime, metaclass=StandIn):
    pass


def test_a_stand_in_for_datetime_is_read_as_datetime():
    at = FakeDatetime(2024, 1, 2)
    for hint in (datetime, FakeDatetime, FakeDatetime | None):
        assert_same(travel(hint, at), datetime(2024, 1, 2))
    assert_same(travel(list[FakeDatetime], [at]), [datetime(2024, 1, 2)])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with 3.12")
def test_type_aliases_are_looked_into_and_may_recur():
    scope: dict[str, Any] = {"datetime": datetime}
    exec("type Moment = datetime | str", scope)
    exec("type Json = dict[str, Json] | list[Json] | str | int | None", scope)
    assert_same(travel(scope["Moment"], datetime(2024, 1, 2)), datetime(2024, 1, 2))
    assert_same(travel(scope["Json"], {"a": [{"b": [1, "c"]}]}), {"a": [{"b": [1, "c"]}]})
    with pytest.raises(BadArguments, match="argument 'value': Expected .*, got float"):
        travel(scope["Json"], 1.5)


# --- refused ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Twin:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Vague:
    at: str | datetime


class Mixed(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (datetime, datetime(1800, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), "would arrive as"),
        (float, 2**53 + 1, "9007199254740993 would arrive as 9007199254740992.0"),
        (str | datetime, datetime(2024, 1, 2), "in JSON, the types it may have look the same"),
        (datetime | str, "2024-01-02T00:00:00", "in JSON, the types it may have look the same"),
        (Point | Twin, Twin(1.0, 2.0), "in JSON, the types it may have look the same"),
        (list[int] | tuple[int, ...], (1, 2), "in JSON, the types it may have look the same"),
        (collections.deque[int], collections.deque([1]), "deque would arrive as list"),
        (collections.Counter[str], collections.Counter("a"), "Counter would arrive as dict"),
        (Vague, Vague("a"), "Vague would arrive as dict (Type unions may not contain more"),
        (list[Vague], [Vague("a")], "Vague would arrive as dict"),
        (Mixed, Mixed.A, "Mixed would arrive as int (Enums must contain either all str or"),
        (dict[str, Any], {"a": {1: 2}}, "the key 1 would not come back"),
        (dict, {UUID(int=1): 1}, "the key UUID('00000000-0000-0000-0000-000000000001') would not"),
        (dict[str, int], {1: 2}, "the key 1 would not come back"),
        # Its order, and so its name, is another one in each process: it has its own.
        pytest.param(set[float], {1.5, float("nan")}, "JSON has no nan", id="set with a NaN"),
        (Model, Model(name="\ud800"), "is not valid Unicode text"),
        (Path, Path("\udcff"), "is not valid Unicode text"),
    ],
    ids=repr,
)
def test_a_value_that_would_arrive_changed_is_refused(hint, value, why):
    with pytest.raises(Unencodable) as caught:
        travel(hint, value)
    assert why in str(caught.value)
    assert caught.value.where.startswith("argument 'value'")


@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (int, "5", "Expected int, got str"),
        (int, True, "Expected int, got bool"),
        (int, 1.5, "Expected int, got float"),
        (float, Decimal("1.5"), "Expected float, got Decimal"),
        (str, Color.RED, "Expected str, got Color"),
        (str, Path("a"), "Expected str, got PosixPath"),
        (Path, 5, "Expected Path, got int"),
        (list[str], [UUID(int=1)], "[0]: Expected str, got UUID"),
        (dict[str, int], Other(number=1), "Expected dict, got Other"),
        (dict[str, float], Point(1.0), "Expected dict, got Point"),
        (Point, Twin(1.0), "Expected Point, got Twin"),
        (date, datetime(2024, 1, 2, 3), "Invalid RFC3339 encoded date"),
        (Color, "green", "Invalid enum value"),
        (Literal["a"], "b", "Invalid enum value"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "Expected int >= 0"),
        (tuple[int, int], (1, 2, 3), "Expected array of length 2"),
        (Settings, {"name": "a", "age": 1}, "Settings has no key 'age'"),
        (Model | int, "x", "Expected Model | int, got str"),
        (Model, {"name": 5}, "Model.name: Input should be a valid string"),
        (list[Model], [{}], "[0]: Model.name: Field required"),
        (bytes, "abcd", "Expected bytes, got str"),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_refused(hint, value, why):
    with pytest.raises(BadArguments) as caught:
        travel(hint, value)
    assert str(caught.value).startswith("task: argument 'value'")
    assert why in str(caught.value)


def test_a_secret_is_not_stored_as_stars():
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(Unencodable, match=r"argument 'value'.password .* would arrive as"):
        travel(Login, Login(password=pydantic.SecretStr("hunter2")))


def test_a_model_that_does_not_fit_its_json_is_a_bad_payload():
    with pytest.raises(BadPayload, match=r"argument 'value': Model.name: Field required"):
        signature_for(Model).decode(b'{"value":{}}')


def test_a_decimal_context_changes_nothing():
    with decimal.localcontext(prec=3):
        value = Decimal("1.23456789")
        assert_same(travel(Decimal, value), value)
