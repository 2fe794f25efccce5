"""Whether a value is the same after its way through JSON, and if not, where and why.

``flaw`` and ``nonfinite`` look at a value alone: what in it has no JSON form. A ``Comparison``
walks a value and what was read back side by side, along its type. All are for the rare case that
the two are not simply equal, and answer with the first place found, as a path such as
``.user.tags[0]``.
"""

from __future__ import annotations

import dataclasses
import math
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

from penstock.core.wire import ENCODER, OneOf, extra, is_model


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong at one place; ``is_misfit`` when another value would have been fine there."""

    path: str
    why: str
    is_misfit: bool = False


def flaw(value: object, path: str = "") -> Flaw | None:
    """The first thing in a value that has no JSON form, or None.

    A RecursionError tells that the value is nested too deeply, or holds itself.
    """
    return nonfinite(value, path) or _search(value, path, _unwritable)


def nonfinite(value: object, path: str = "") -> Flaw | None:
    """The first NaN or infinity in a value; msgspec would write it as null."""
    return _search(value, path, _nonfinite)


def is_equal(given: Any, back: Any) -> bool:
    """What the values' own ``==`` says; one that raises says no."""
    try:
        return bool(given == back)
    except Exception:
        return False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rules by which what was read back may differ from what was given.

    Always fine is what the type's own JSON form stands for: an int for a float, a list for a
    tuple, text for a date, a dict for a dataclass, a subclass for its class. Where the type says
    nothing, plain JSON may come back for anything.
    """

    takes_base64: bool = False
    """Text may be given for bytes: the value comes as JSON, not from Python code."""
    takes_misfits: bool = False
    """The type is a mere hint: a date may come back as text."""

    def change(self, info: Type | None, given: Any, back: Any, path: str = "") -> Flaw | None:
        """The first place where ``back`` is not what ``given`` was; ``info`` None says nothing."""
        if type(given) in _ATOMS and type(back) is type(given) and given == back:
            return None
        lost = None if self.takes_misfits else extra(info, "lost")
        if lost is not None and lost.takes(given) and not lost.takes(back):
            why = f"{type(given).__name__} would arrive as {type(back).__name__}"
            return Flaw(path, f"{why} ({lost.why.replace('`', '')})")
        if given is back or (extra(info, "paths") and isinstance(given, PurePath)):
            return None
        info = _bare(info)
        members = _members(info)
        if members:
            if not self.takes_misfits and _is_mistaken(members, given, back):
                why = f"{_brief(given)} would arrive as {_brief(back)}"
                return Flaw(path, f"{why}: in JSON, the types it may have look the same")
            return self.change(_owner(members, back), given, back, path)
        if isinstance(given, Mapping) and isinstance(back, Mapping):
            return self._mapping(info, given, back, path)
        if _is_row(given) and _is_row(back):
            return self._row(info, given, back, path)
        if isinstance(given, type(back)) and (fields := _fields(back)) is not None:
            return self._object(info, given, fields, path)
        if isinstance(given, Mapping) and isinstance(info, _WITH_FIELDS):
            return self._json_object(info, given, path)
        return self._scalar(info, given, back, path)

    def _mapping(
        self, info: Type | None, given: Mapping[Any, Any], back: Mapping[Any, Any], path: str
    ) -> Flaw | None:
        kinds = _field_kinds(info)
        for key, item in given.items():
            place = f"{path}[{key!r}]"
            if key not in back:
                if isinstance(info, shape.TypedDictType) and isinstance(key, str):
                    return Flaw(place, f"{info.cls.__name__} has no key {key!r}", is_misfit=True)
                why = f"the key {key!r} would not come back: in JSON, keys are text"
                return Flaw(path, f"{why} (declare dict[{type(key).__name__}, ...] or use text)")
            kind = info.value_type if isinstance(info, shape.DictType) else kinds.get(key)
            found = self.change(kind, item, back[key], place)
            if found is not None:
                return found
        return None

    def _row(self, info: Type | None, given: Any, back: Any, path: str) -> Flaw | None:
        if isinstance(back, Set):
            for item in given:
                if not _is_in(item, back):
                    return Flaw(path, f"{_brief(item)} would not come back as it is")
            return None
        if len(given) != len(back):
            return Flaw(path, f"{len(given)} items would arrive as {len(back)}")
        kinds = _item_kinds(info, len(back))
        # A set is written in the order of its iteration, so that the pairs match.
        for place, (kind, item, other) in enumerate(zip(kinds, given, back, strict=True)):
            found = self.change(kind, item, other, f"{path}[{place}]")
            if found is not None:
                return found
        return None

    def _object(
        self, info: Type | None, given: Any, fields: Mapping[str, Any], path: str
    ) -> Flaw | None:
        kinds = _field_kinds(info)
        for name, other in fields.items():
            place = f"{path}.{_json_name(info, name)}"
            found = self.change(kinds.get(name), getattr(given, name), other, place)
            if found is not None:
                return found
        return None

    def _json_object(self, info: Any, given: Mapping[Any, Any], path: str) -> Flaw | None:
        """A dict stands for an object; what the class does not know would be dropped."""
        known = {field.encode_name for field in info.fields} | {getattr(info, "tag_field", None)}
        for key in given:
            if key not in known:
                why = f"{info.cls.__name__} has no field {key!r}"
                return Flaw(path, why, is_misfit=True)
        return None

    def _scalar(self, info: Type | None, given: Any, back: Any, path: str) -> Flaw | None:
        if _is_kind(given, back):
            if _is_same(given, back):
                return None
            return Flaw(path, f"{_brief(given)} would arrive as {_brief(back)}")
        if isinstance(given, str) and isinstance(back, bytes | bytearray | memoryview):
            is_fine = self.takes_base64
        elif isinstance(given, _PLAIN):
            is_fine = True
        else:
            is_fine = info is None and isinstance(back, _PLAIN)
        if is_fine or self.takes_misfits:
            is_instant = isinstance(given, datetime) and isinstance(back, str)
            if not is_instant or _is_same(given, datetime.fromisoformat(back)):
                return None
            return Flaw(path, f"{_brief(given)} would arrive as {back!r}")
        expected, got = type(back).__name__, type(given).__name__
        return Flaw(path, f"Expected {expected}, got {got}", is_misfit=True)


# --- values -------------------------------------------------------------------------------------

_PLAIN: Final = (str, int, float, bool, type(None), list, dict)
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_ROWS: Final = frozenset({list, tuple, set, frozenset})


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
    if isinstance(value, float) and not math.isfinite(value):
        return f"JSON has no {float(value)!r}"
    return None


def _unwritable(value: object) -> str | None:
    try:
        ENCODER.encode(value)
    except UnicodeEncodeError:
        return f"{_brief(value)} is no valid Unicode text (a lone surrogate)"
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
        for name, item in (_fields(value) or {}).items():
            yield f".{name}", item


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object that is data, or None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        names: Any = value.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__]
    elif is_model(kind):
        names = kind.model_fields
    else:
        return None
    found = {name: getattr(value, name, msgspec.UNSET) for name in names}
    return {name: item for name, item in found.items() if item is not msgspec.UNSET}


def _is_row(value: object) -> bool:
    if type(value) in _ROWS or type(value) in _ATOMS:
        return type(value) in _ROWS
    text = (str, bytes, bytearray, memoryview)
    return isinstance(value, Sequence | Set) and not isinstance(value, text)


def _is_in(item: object, back: Set[Any]) -> bool:
    try:
        return item in back
    except TypeError:  # a list stands for a tuple
        return True


def _is_kind(given: object, back: object) -> bool:
    """A type checker would take it for what came back: a subclass, or an int for a float."""
    return isinstance(given, type(back)) or (type(given) is int and type(back) is float)


def _is_same(given: Any, back: Any) -> bool:
    if is_equal(given, back):
        return True
    if isinstance(given, datetime) and given.tzinfo and back.tzinfo:
        # In the hour that a time zone repeats, == is never true between zones.
        return given.astimezone(UTC) == cast(datetime, back).astimezone(UTC)
    # A decimal NaN is not equal to itself.
    return isinstance(given, Decimal) and str(given) == str(back)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- types --------------------------------------------------------------------------------------

_WITH_FIELDS: Final = (shape.DataclassType, shape.StructType)

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


def _python(info: Type | None) -> type | None:
    """The class whose values a type describes, or None for Any."""
    info = _bare(info)
    if info is None:
        return None
    kind = _PYTHON.get(type(info)) or getattr(info, "cls", None)
    return get_origin(kind) or kind


def _owner(members: Sequence[Type], value: object) -> Type | None:
    """The member of a union that a value belongs to; None where none says anything."""
    for member in members:
        kind = _python(member)
        if kind is not None and isinstance(value, kind):
            return member
    return None


def _is_mistaken(members: Sequence[Type], given: object, back: object) -> bool:
    """The value belongs to one member of a union and came back as another."""
    return not _is_kind(given, back) and _owner(members, given) is not None


def _field_kinds(info: Type | None) -> dict[str, Type]:
    return {field.name: field.type for field in getattr(info, "fields", ())}


def _json_name(info: Type | None, name: str) -> str:
    fields: Sequence[shape.Field] = getattr(info, "fields", ())
    names = {field.name: field.encode_name for field in fields}
    return names.get(name, name)


def _item_kinds(info: Type | None, count: int) -> Sequence[Type | None]:
    if isinstance(info, shape.TupleType):
        return info.item_types
    if isinstance(info, shape.NamedTupleType):
        return [field.type for field in info.fields]
    return [getattr(info, "item_type", None)] * count
