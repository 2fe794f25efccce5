"""What a function's annotations mean: text is resolved, and what cannot be says why."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, ForwardRef, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An annotation whose type is not known, or not yet."""

    annotation: str
    """As it is written."""
    error: Exception

    @property
    def may_come(self) -> bool:
        """Only a name is missing, which the program may define later."""
        return is_missing_name(self.error)


def is_missing_name(error: Exception) -> bool:
    """What an annotation raises that names something which is not there, or not yet."""
    return isinstance(error, (NameError, AttributeError))


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The function's parameters; ValueError or TypeError if they cannot be known."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def namespace(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The names that the function's annotations can use.

    ``known`` is for names that were imported for the type checker only.
    """
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__globals__"):  # an object that can be called
        function = inspect.getattr_static(function, "__call__", function)
    names = {**known, **getattr(function, "__globals__", {}), **_enclosing_names(function)}
    names |= {each.__name__: each for each in getattr(function, "__type_params__", ())}
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _enclosing_names(function: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the function, or class body, that defines this one just now."""
    code = getattr(function, "__code__", None)
    if "." not in getattr(function, "__qualname__", ""):
        return {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(each is code for each in frame.f_code.co_consts):
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def read_hints(
    function: Callable[..., Any], written: inspect.Signature, *known: type | None
) -> dict[str, Any]:
    """The type of each parameter, and of ``return``; ``Unresolved`` where it is not known now.

    ``known`` are classes that annotations may name without an import at run time.
    """
    names = namespace(function, {each.__name__: each for each in known if each is not None})
    hints = {each.name: resolve(each.annotation, names) for each in written.parameters.values()}
    return {**hints, "return": resolve(written.return_annotation, names)}


def resolve(annotation: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation stands for: Any if there is none, else perhaps Unresolved."""
    if annotation is inspect.Parameter.empty:
        return Any
    bearer = SimpleNamespace(__annotations__={"hint": annotation})
    try:
        return get_type_hints(bearer, names, include_extras=True)["hint"]
    except Exception as error:  # an annotation may be any expression
        return Unresolved(written(annotation), error.with_traceback(None))


def written(annotation: Any) -> str:
    """An annotation as it stands in the code."""
    match annotation:
        case str():
            return annotation
        case ForwardRef():
            return annotation.__forward_arg__
        case _:
            return inspect.formatannotation(annotation)


def core_class(hint: Any) -> type | None:
    """The class behind ``Annotated`` and ``Optional``, if it is a single one."""
    if get_origin(hint) is Annotated:
        return core_class(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        rest = [part for part in get_args(hint) if part is not NoneType]
        return core_class(rest[0]) if len(rest) == 1 else None
    return hint if isinstance(hint, type) else None
