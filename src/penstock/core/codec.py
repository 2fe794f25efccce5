"""One type's way into JSON and back, tried out before a job relies on it.

Whatever is written is read again at once: what would arrive as something else is refused where it
was given, never found out at run. Encoding, decoding and ``==`` are one call each into msgspec,
well under a microsecond for a small value; only where ``==`` says no, value and copy are walked
through along their type, to tell a tuple that arrives as the list that stands for it from a
datetime that arrives as text.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final, cast, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect as shape
from msgspec.inspect import Type, type_info

from penstock.core.json_types import ENCODER, OneOf, decoder, extra, is_loose, is_model
from penstock.errors import BadArguments, PayloadTooLarge, Unencodable

LIMIT: Final = 1 << 20
"""How many bytes of JSON a job's arguments or its result may have unless it is said otherwise."""

TOO_DEEP: Final = "it is nested too deeply, or holds itself"

_PLACE: Final = re.compile(r" - at (?:(`key`) in )?`\$(.*)`$")
_EXPECTED: Final = re.compile(r"(Expected .*), got \w+$")


@dataclass(frozen=True, slots=True)
class Rules:
    """How far what is read may differ from what was written."""

    takes_base64: bool = False
    """Text may be given for bytes: the value comes as JSON, not from Python code."""
    takes_misfits: bool = False
    """The type is a mere hint: a date may come back as text."""


STRICT: Final = Rules()
FROM_JSON: Final = Rules(takes_base64=True)
LOOSE: Final = Rules(takes_base64=True, takes_misfits=True)


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong at one place; ``is_misfit`` when another value would have been fine there."""

    path: str
    why: str
    is_misfit: bool = False


class Codec:
    """Writes and reads values of one type; ``label`` turns a path in them into words."""

    __slots__ = ("_info", "_label", "_loose", "read")

    read: Callable[[bytes], Any]
    """The value that was written; what msgspec or the type itself raises if it does not fit."""

    def __init__(self, kind: Any, label: Callable[[str], str]) -> None:
        self.read = decoder(kind).decode
        self._info = type_info(kind)
        self._label = label
        fields = getattr(self._info, "fields", ())
        # Their values may be equal to the plain JSON that comes back, and yet be of a subclass.
        self._loose = tuple(field.name for field in fields if is_loose(field.type))

    def write(self, value: Any, task: str, limit: int, rules: Rules = STRICT) -> bytes:
        """JSON that will be read as the same value.

        On failure: Unencodable for what has no JSON form, BadArguments for what does not fit the
        type, PayloadTooLarge.
        """
        try:
            payload = ENCODER.encode(value)
        except Exception as error:  # msgspec's, a model's own, or RecursionError
            found = _searched(_search, value, "", _nonfinite)
            found = found or _searched(_search, value, "", _unwritable) or Flaw("", str(error))
            raise self._refusal(found, task) from error
        if len(payload) > limit:
            raise PayloadTooLarge(task, len(payload), limit)
        info: Type | None = self._info
        try:
            back = self.read(payload)
        except Exception as error:  # a type's own code runs here too
            if not rules.takes_misfits:
                raise self._misread(value, task, error) from error
            info, back = None, msgspec.json.decode(payload)
        is_plain = rules.takes_misfits or self._is_plain(value)
        if info is None or not is_plain or not _is_equal(value, back):
            found = _searched(_search, value, "", _nonfinite)
            found = found or _searched(_change, info, value, back, "", rules)
            if found is not None:
                raise self._refusal(found, task)
        return payload

    def explain(self, error: Exception) -> str:
        """What ``read`` raised, in one line that begins with the place."""
        path, why = _split(error)
        return f"{self._label(path)}: {why}"

    def _is_plain(self, value: Any) -> bool:
        """What no type reads back is exactly of JSON's own types."""
        try:
            return all(foreign(getattr(value, name), "") is None for name in self._loose)
        except RecursionError:
            return False

    def _refusal(self, found: Flaw, task: str) -> BadArguments | Unencodable:
        where = self._label(found.path)
        if found.is_misfit:
            return BadArguments(task, f"{where}: {found.why}")
        return Unencodable(task, where, found.why)

    def _misread(self, value: Any, task: str, error: Exception) -> BadArguments | Unencodable:
        if isinstance(error, RecursionError):
            return self._refusal(Flaw("", TOO_DEEP), task)
        found = _searched(_search, value, "", _nonfinite)
        if found is not None:
            return self._refusal(found, task)
        path, why = _split(error)
        for field in getattr(self._info, "fields", ()):
            if path == f".{field.encode_name}":
                # msgspec names the JSON type, which for a Decimal or a UUID is not what was given.
                given = type(getattr(value, field.name)).__name__
                why = _EXPECTED.sub(rf"\1, got {given}", why)
        return self._refusal(Flaw(path, why, is_misfit=True), task)


def _split(error: Exception) -> tuple[str, str]:
    """The path and the sentence of what msgspec raised."""
    if isinstance(error, RecursionError):
        return "", TOO_DEEP
    if not isinstance(error, msgspec.ValidationError):
        return "", f"{type(error).__name__}: {error}"
    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        return "", text.replace("`", "")
    key = " key" if place[1] else ""
    return place[2] + key, text[: place.start()].replace("`", "")


def _searched(search: Callable[..., Flaw | None], *args: Any) -> Flaw | None:
    """What a search finds; one that does not come to an end is a find too."""
    try:
        return search(*args)
    except RecursionError:
        return Flaw("", TOO_DEEP)


# --- what has no JSON form ----------------------------------------------------------------------

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_PLAIN: Final = (str, int, float, bool, type(None), list, dict)


def _search(value: object, path: str, test: Callable[[object], str | None]) -> Flaw | None:
    """The innermost place, first in order, where ``test`` finds fault."""
    if type(value) not in _ATOMS:
        for step, part in _parts(value):
            found = _search(part, path + step, test)
            if found is not None:
                return found
    why = test(value)
    return None if why is None else Flaw(path, why)


def _nonfinite(value: object) -> str | None:
    """msgspec would write NaN and infinity as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"JSON has no {float(value)!r}"
    return None


def _unwritable(value: object) -> str | None:
    try:
        ENCODER.encode(value)
    except UnicodeEncodeError:
        return f"{_brief(value)} is not valid Unicode text (a lone surrogate)"
    except Exception as error:
        key = _bad_key(value) if isinstance(value, Mapping) else None
        return key or str(error) or type(error).__name__
    return None


def _bad_key(value: Mapping[Any, Any]) -> str | None:
    for key in value:
        try:
            ENCODER.encode({key: None})
        except Exception:
            return f"the key {_brief(key)} has no form as text"
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value is made of, each with its step in a path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f" key {key!r}", key
            yield f"[{key!r}]", item
    elif _is_row(value):
        for place, item in enumerate(value):
            yield f"[{place}]", item
    else:
        for name in _field_names(type(value)):
            if (item := getattr(value, name, msgspec.UNSET)) is not msgspec.UNSET:
                yield f".{name}", item


def _field_names(kind: Any) -> Sequence[str]:
    """The fields of a class of data; none of any other class."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if is_model(kind):
        return tuple(kind.model_fields)
    attributes = getattr(kind, "__attrs_attrs__", ())
    return getattr(kind, "__struct_fields__", None) or [field.name for field in attributes]


def _is_row(value: object) -> bool:
    text = (str, bytes, bytearray, memoryview)
    return isinstance(value, Sequence | Set) and not isinstance(value, text)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- what would arrive as something else --------------------------------------------------------
#
# Fine is what the type's own JSON form stands for: an int for a float, a list for a tuple, text for
# a date, a dict for a dataclass, a subclass for its class. Where the type is Any, plain JSON may
# come back for anything. Where no type says how to read a value back, it must be of JSON's own.


def _change(info: Type | None, given: Any, back: Any, path: str, rules: Rules) -> Flaw | None:
    """The first place where ``back`` is not what ``given`` was; ``info`` None says nothing."""
    if type(given) in _ATOMS and type(back) is type(given) and given == back:
        return None
    lost = None if rules.takes_misfits else extra(info, "lost")
    if lost is not None and lost.takes(given) and not lost.takes(back):
        why = f"{type(given).__name__} would arrive as {type(back).__name__}"
        return Flaw(path, f"{why} ({lost.why.replace('`', '')})")
    if lost is not None or (extra(info, "untyped") and not rules.takes_misfits):
        return _unread(foreign(given, path))
    if given is back or (extra(info, "paths") and isinstance(given, PurePath)):
        return None
    info = _bare(info)
    members = _members(info)
    if members:
        is_mistaken = not _is_kind(given, back) and _owner(members, given) is not None
        if is_mistaken and not rules.takes_misfits:
            why = f"{_brief(given)} would arrive as {_brief(back)}"
            return Flaw(path, f"{why}: in JSON, the types it may have look the same")
        return _change(_owner(members, back), given, back, path, rules)
    if isinstance(given, Mapping):
        if isinstance(back, Mapping):
            return _mapping_change(info, given, back, path, rules)
        if isinstance(info, shape.DataclassType | shape.StructType):
            return _unknown_field(info, given, path)
    elif _is_row(given) and _is_row(back):
        return _row_change(info, given, back, path, rules)
    elif isinstance(given, type(back)) and (names := _field_names(type(back))):
        fields = {field.name: field for field in getattr(info, "fields", ())}
        for name in names:
            field = fields.get(name)
            kind, label = (field.type, field.encode_name) if field else (None, name)
            part, other = getattr(given, name, None), getattr(back, name, None)
            if found := _change(kind, part, other, f"{path}.{label}", rules):
                return found
        return None
    return _scalar_change(info, given, back, path, rules)


def foreign(value: object, path: str) -> Flaw | None:
    """The first part of a value that is not exactly of one of JSON's own types; ``path`` leads to
    the value.
    """
    kind = type(value)
    if kind in _ATOMS:
        return None
    if kind is dict and isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                return _lost_key(key, path)
            if type(item) not in _ATOMS and (found := foreign(item, f"{path}[{key!r}]")):
                return found
    elif kind is list and isinstance(value, list):
        for place, item in enumerate(value):
            if type(item) not in _ATOMS and (found := foreign(item, f"{path}[{place}]")):
                return found
    elif value is not msgspec.UNSET:
        return Flaw(path, f"{kind.__name__} is not one of JSON's own types", is_misfit=True)
    return None


def _unread(found: Flaw | None) -> Flaw | None:
    """The same of an argument."""
    if found is None or not found.is_misfit:
        return found
    why = (
        f"{found.why}, and no annotation says how to read it back; annotate the parameter, or "
        "convert the value to None, bool, int, float, str, list or dict"
    )
    return dataclasses.replace(found, why=why)


def _lost_key(key: object, path: str) -> Flaw:
    why = f"the key {key!r} would not come back: in JSON, keys are text"
    return Flaw(path, f"{why} (declare dict[{type(key).__name__}, ...] or use text)")


def _mapping_change(
    info: Type | None, given: Mapping[Any, Any], back: Mapping[Any, Any], path: str, rules: Rules
) -> Flaw | None:
    kinds = {field.encode_name: field.type for field in getattr(info, "fields", ())}
    for key, item in given.items():
        place = f"{path}[{key!r}]"
        if key not in back:
            if isinstance(info, shape.TypedDictType) and isinstance(key, str):
                return Flaw(place, f"{info.cls.__name__} has no key {key!r}", is_misfit=True)
            return _lost_key(key, path)
        kind = info.value_type if isinstance(info, shape.DictType) else kinds.get(key)
        if found := _change(kind, item, back[key], place, rules):
            return found
    return None


def _row_change(info: Type | None, given: Any, back: Any, path: str, rules: Rules) -> Flaw | None:
    if isinstance(back, Set):
        is_untyped = bool(extra(getattr(info, "item_type", None), "untyped"))
        for item in given:
            if is_untyped and not rules.takes_misfits and (found := _unread(foreign(item, path))):
                return found
            if not isinstance(item, _PLAIN) and item not in back:  # a list stands for a tuple
                return Flaw(path, f"{_brief(item)} would not come back as it is")
        return None
    match info:
        case shape.TupleType():
            kinds: Sequence[Type | None] = info.item_types
        case shape.NamedTupleType():
            kinds = [field.type for field in info.fields]
        case _:
            kinds = [getattr(info, "item_type", None)] * len(back)
    # A set is written in the order of its iteration, so that the pairs match.
    for place, (kind, item, other) in enumerate(zip(kinds, given, back, strict=False)):
        if found := _change(kind, item, other, f"{path}[{place}]", rules):
            return found
    return None


def _unknown_field(info: Any, given: Mapping[Any, Any], path: str) -> Flaw | None:
    """A dict stands for an object; what the class does not know would be dropped."""
    known = {field.encode_name for field in info.fields} | {getattr(info, "tag_field", None)}
    for key in given:
        if key not in known:
            return Flaw(path, f"{info.cls.__name__} has no field {key!r}", is_misfit=True)
    return None


def _scalar_change(
    info: Type | None, given: Any, back: Any, path: str, rules: Rules
) -> Flaw | None:
    if _is_kind(given, back):
        if _is_same(given, back):
            return None
        return Flaw(path, f"{_brief(given)} would arrive as {_brief(back)}")
    if rules.takes_misfits:
        return None
    if isinstance(given, str) and isinstance(back, bytes | bytearray | memoryview):
        is_fine = rules.takes_base64
    else:
        is_fine = isinstance(given, _PLAIN) or (info is None and isinstance(back, _PLAIN))
    if is_fine:
        return None
    expected, got = type(back).__name__, type(given).__name__
    return Flaw(path, f"Expected {expected}, got {got}", is_misfit=True)


def _is_equal(given: Any, back: Any) -> bool:
    """What the values' own ``==`` says; one that raises says no."""
    try:
        return bool(given == back)
    except Exception:
        return False


def _is_kind(given: object, back: object) -> bool:
    """A type checker would take it for what came back: a subclass, or an int for a float."""
    return isinstance(given, type(back)) or (type(given) is int and type(back) is float)


def _is_same(given: Any, back: Any) -> bool:
    if isinstance(given, datetime) and given.tzinfo and back.tzinfo:
        # In the hour that a time zone repeats, == is never true between zones.
        return given.astimezone(UTC) == cast(datetime, back).astimezone(UTC)
    # A decimal NaN is not equal to itself.
    return _is_equal(given, back) or (isinstance(given, Decimal) and str(given) == str(back))


# --- the types of a union -----------------------------------------------------------------------

_PYTHON: Final[Mapping[type[Type], type]] = {
    shape.NoneType: type(None),
    shape.BoolType: bool,
    shape.IntType: int,
    shape.FloatType: float,
    shape.StrType: str,
    shape.BytesType: bytes,
    shape.ByteArrayType: bytearray,
    shape.DateTimeType: datetime,
    shape.DateType: date,
    shape.TimeType: time,
    shape.TimeDeltaType: timedelta,
    shape.UUIDType: UUID,
    shape.DecimalType: Decimal,
    shape.ListType: list,
    shape.TupleType: tuple,
    shape.VarTupleType: tuple,
    shape.SetType: set,
    shape.FrozenSetType: frozenset,
    shape.DictType: dict,
    shape.TypedDictType: dict,
}


def _bare(info: Type | None) -> Type | None:
    """The type without its notes; None for Any."""
    while isinstance(info, shape.Metadata):
        info = info.type
    return None if isinstance(info, shape.AnyType) else info


def _members(info: Type | None) -> Sequence[Type]:
    """The types of a union, or nothing."""
    if isinstance(info, shape.UnionType):
        return [part for member in info.types for part in _members(member) or (member,)]
    if isinstance(info, shape.CustomType) and OneOf in getattr(info.cls, "__mro__", ()):
        return [type_info(kind) for kind in cast(type[OneOf], info.cls).kinds]
    return ()


def _owner(members: Sequence[Type], value: object) -> Type | None:
    """The member of a union that a value belongs to; None where none says anything."""
    for member in members:
        info = _bare(member)
        kind = None if info is None else _PYTHON.get(type(info)) or getattr(info, "cls", None)
        kind = get_origin(kind) or kind
        if kind is not None and isinstance(value, kind):
            return member
    return None
