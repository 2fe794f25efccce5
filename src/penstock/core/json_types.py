"""Which types travel as JSON, and how those that msgspec does not know are written and read.

msgspec carries numbers, text, bytes, dates, UUIDs, decimals, enums, containers, dataclasses,
Structs, attrs classes, TypedDicts and NamedTuples by itself. Here are added: paths, pydantic
models, subclasses of plain types, other mappings and sequences, and unions whose members msgspec
refuses to tell apart. What cannot be read back as its class is read as plain JSON. An aware
datetime keeps its instant and offset, not the name of its zone.
"""

from __future__ import annotations

import os
import sys
from abc import ABCMeta
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
)
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, NewType, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec.inspect import CustomType, Metadata, Type, type_info

UNTYPED: Final = Annotated[Any, msgspec.Meta(extra={"untyped": True})]
"""The type of a parameter without annotation, or of the items of a bare ``list``: JSON's own types
only.
"""


@dataclass(frozen=True, slots=True)
class Lost:
    """A class that JSON cannot give back; its values would arrive as plain JSON."""

    hint: Any
    why: str

    def takes(self, value: object) -> bool:
        """It is this class that the value would lose."""
        kind = get_origin(self.hint) or self.hint
        try:
            return isinstance(value, kind)
        except TypeError:  # neither a class nor a protocol that can be asked
            return False


class _Anything(type):
    """msgspec wants what a hook returns to be an instance of the type it was asked for."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class OneOf(metaclass=_Anything):
    """A union that msgspec cannot read by itself: the members are tried in their order.

    The first wins whose value is written as exactly the same JSON again, or else the first that
    takes it at all.
    """

    kinds: ClassVar[tuple[Any, ...]] = ()

    @classmethod
    def read(cls, value: object) -> object:
        accepted: list[object] = []
        for kind in cls.kinds:
            try:
                found = msgspec.convert(value, kind, str_keys=True, dec_hook=_read)
            except msgspec.ValidationError:
                continue
            if msgspec.to_builtins(found, str_keys=True, enc_hook=_plain) == value:
                return found
            accepted.append(found)
        if accepted:
            return accepted[0]
        expected = " | ".join(map(_title, cls.kinds))
        raise ValueError(f"Expected {expected}, got `{type(value).__name__}`")


def carried(hint: Any, within: frozenset[Any] = frozenset()) -> Any:
    """The nearest type to ``hint`` that can be read back; Any where there is none.

    ``within`` are the type aliases that are being looked into: one that comes again is Any.
    On failure: NameError or AttributeError for a class with a field whose type is not there.
    """
    if hint is Any or hint is object or any(hint is alias for alias in within):
        return Any
    if (bare := _bare(hint)) is not None:
        return bare
    why = _obstacle(hint)
    if why is None and not _holds_bare(hint):
        return hint
    nearest = _nearest(hint, within)
    if nearest is not None and _obstacle(nearest) is None:
        return nearest
    if why is None:
        return hint
    return Annotated[Any, msgspec.Meta(extra={"lost": Lost(hint, why)})]


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A reader of JSON for a carried type."""
    return msgspec.json.Decoder(kind, dec_hook=_read)


def extra(info: Type | None, name: str) -> Any:
    """What was noted at this place of a type: ``lost``, ``paths`` or ``untyped``."""
    return (info.extra or {}).get(name) if isinstance(info, Metadata) else None


def is_loose(info: Type) -> bool:
    """Somewhere in the annotation, what is read is plain JSON and should be what was written."""
    return any(extra(part, "lost") or extra(part, "untyped") for part in _outline(info))


def is_model(kind: object) -> bool:
    """It is a pydantic model class; pydantic is never imported for the question."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


# --- from a hint to a type msgspec can read -----------------------------------------------------

_CONTAINERS: Final = frozenset(
    {
        *(list, tuple, set, frozenset, dict),
        *(Collection, Sequence, MutableSequence, Set, MutableSet, Mapping, MutableMapping),
    }
)


def _bare(hint: Any) -> Any | None:
    """A container that does not say what is in it, as one of JSON's own types; None: it does."""
    origin: Any = get_origin(hint) or hint
    if hasattr(hint, "__args__") or type(origin) not in (type, ABCMeta):
        return None
    if origin is Iterable:
        origin = list
    if origin is tuple:
        return GenericAlias(tuple, (UNTYPED, ...))
    if origin in (dict, Mapping, MutableMapping):
        return origin[Any, UNTYPED]
    return origin[UNTYPED] if origin in _CONTAINERS else None


def _holds_bare(hint: Any) -> bool:
    return any(_bare(part) is not None or _holds_bare(part) for part in get_args(hint))


def _nearest(hint: Any, within: frozenset[Any]) -> Any | None:
    """The same type with its parts replaced by what can be carried, or None."""
    origin: Any = get_origin(hint) or hint
    parts = get_args(hint)
    if origin is Annotated:
        return Annotated[(carried(parts[0], within), *parts[1:])]
    if origin in (Union, UnionType):
        return _union(parts, within)
    if origin is Iterable:
        return GenericAlias(list, carried(parts[0], within))
    if origin is os.PathLike:
        return Path
    if isinstance(origin, NewType):
        return carried(origin.__supertype__, within)
    if hasattr(origin, "__value__"):  # type X = ...
        return carried(origin.__value__, within | {hint})
    if parts and origin in _CONTAINERS:
        return origin[tuple(part if part is ... else carried(part, within) for part in parts)]
    return None


def _union(members: tuple[Any, ...], within: frozenset[Any]) -> Any:
    kinds = [carried(member, within) for member in members if member is not NoneType]
    if str in kinds and any(_is_path(kind) for kind in kinds):
        # JSON has one form for both, and a function that takes both is content with text.
        text = Annotated[str, msgspec.Meta(extra={"paths": True})]
        kinds = [text if kind is str else kind for kind in kinds if not _is_path(kind)]
    kinds.sort(key=_is_lost)
    whole: Any = Union[tuple(kinds)]  # noqa: UP007 (made at run time)
    if len(kinds) > 1 and (_is_lost(kinds[-1]) or _obstacle(whole) is not None):
        whole = _Anything("OneOf", (OneOf,), {"kinds": tuple(kinds)})
    return whole | None if NoneType in members else whole


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _is_lost(kind: Any) -> bool:
    return get_origin(kind) is Annotated and extra(type_info(kind), "lost") is not None


def _obstacle(hint: Any) -> str | None:
    """Why msgspec cannot read this type with our hooks, or None if it can."""
    try:
        info = type_info(hint)
    except (NameError, AttributeError):
        raise
    except Exception as error:
        return str(error)
    for part in _outline(info):
        if isinstance(part, CustomType) and not _is_known(part.cls):
            return f"Type '{_title(part.cls)}' is not supported"
    return None


def _outline(info: Type) -> Iterator[Type]:
    """A type and the parts that are written in the annotation, not those inside of classes."""
    yield info
    inner = [getattr(info, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    for part in (*inner, *getattr(info, "types", ()), *getattr(info, "item_types", ())):
        if part is not None:
            yield from _outline(part)


def _is_known(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, (PurePath, str, int, float))
        or type(kind) is _Anything
        or _frozen(kind) is not None
        or is_model(kind)
    )


def _title(kind: Any) -> str:
    """A type as it is written in code."""
    if get_origin(kind) is Annotated:
        lost = extra(type_info(kind), "lost")
        return _title(lost.hint if lost else get_args(kind)[0])
    return kind.__name__ if isinstance(kind, type) else str(kind)


# --- what msgspec does not know -----------------------------------------------------------------


def _frozen(kind: type[Any]) -> type[Any] | None:
    """The class that ``kind`` replaces where a test freezes time."""
    kinds: tuple[type[Any], ...] = (datetime, date)
    return next((each for each in kinds if issubclass(kind, each) and issubclass(each, kind)), None)


def _plain(value: Any) -> Any:
    """Write a value that msgspec cannot: as something it can."""
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case bytes():
            return bytes(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return timedelta(value.days, value.seconds, value.microseconds)
        case Decimal() | UUID() | PurePath():
            return str(value)
        case Mapping():
            return dict(value)
        case Sequence() | Set():
            return list(value)
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    raise NotImplementedError(f"a value of type {type(value).__name__} has no JSON form")


def _read(kind: Any, value: Any) -> Any:
    """Read a value as a type that msgspec does not know; it checks the type of the answer."""
    if not isinstance(kind, type):
        return value
    if type(kind) is _Anything:
        return kind.read(value)  # type: ignore[attr-defined]
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    for base in (str, int, float):
        if issubclass(kind, base) and type(value) is base:
            return kind(value)
    replaced = _frozen(kind)
    if replaced is not None:
        return msgspec.convert(value, replaced)
    return _read_model(kind, value) if is_model(kind) else value


def _read_model(kind: Any, value: Any) -> Any:
    """Read a pydantic model in JSON mode, where strict models take text for dates too."""
    try:
        return kind.model_validate_json(ENCODER.encode(value))
    except sys.modules["pydantic"].ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        lines = (
            f"{'.'.join(map(str, (kind.__name__, *detail['loc'])))}: {detail['msg']}"
            for detail in details
        )
        raise ValueError("; ".join(lines)) from error


ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)
