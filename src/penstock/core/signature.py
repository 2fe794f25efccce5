"""A task's arguments and result as JSON, by its function's signature.

Arguments travel as one JSON object by parameter name. A call is checked when it is made: one that
does not bind, or a value that does not fit its annotation, is refused there; and so is what would
not come back as it was given. At run, defaults apply to what was not given, so that one can be
added or changed while jobs wait.

    def send(to: str, *, at: datetime | None = None)      send.enqueue("a@b.c") -> {"to":"a@b.c"}

What a value may be is its annotation's business: see ``json_types``. A parameter without
annotation, or with one that has no JSON form, takes JSON's own types only. One that is Any takes
anything that can be written, and gets plain JSON. A name in an annotation that is not there when
the task is declared may come later, such as a class further down in the module; one that is still
not there at the first use makes every call fail, for the value would arrive as something else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final

import msgspec

from penstock.core.annotations import (
    Unresolved,
    core_class,
    is_missing_name,
    read_hints,
    read_signature,
    written,
)
from penstock.core.binding import Binding, BoundCall, Direct, General, Whole
from penstock.core.codec import FROM_JSON, LIMIT, LOOSE, TOO_DEEP, Codec
from penstock.core.hooks import Function, name_of
from penstock.core.injection import Plan, Supplier, planned, wanted_by
from penstock.core.json_types import carried
from penstock.errors import BadArguments, BadPayload, BadTask, NotAnObject, PayloadTooLarge

__all__ = ["LIMIT", "Payload", "Signature", "encode_plain"]


class Payload(dict[str, Any]):
    """The whole body of a job: ``def hook(payload: Payload)`` takes any JSON object.

    It is enqueued as ``hook.enqueue({"a": 1})``, which stores ``{"a": 1}`` itself. Beside it, the
    function may only have parameters that the worker fills in.
    """


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What the resolved annotations give; made together, used together."""

    binding: Binding
    body: Codec
    result: Codec


class Signature:
    """How one task is called: what it takes, what it gives, and both as JSON.

    An annotation that cannot be resolved yet is tried again at the first use, when all modules are
    there.
    """

    __slots__ = (
        "_function",
        "_hints",
        "_inject",
        "_resolved",
        "_supplier",
        "_written",
        "plan",
        "task",
    )

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        task: str,
        *,
        inject: type | None = None,
        supplier: Supplier | None = None,
    ) -> Signature:
        """The signature of ``function`` as the task named ``task``.

        A parameter annotated with the class ``inject`` is no part of the payload: ``decode``
        fills it. Nor is one that is marked with ``Depends``, or that ``supplier`` knows a maker
        for: ``fill`` does.
        On failure: BadTask for a function that cannot be called from a payload.
        """
        return cls(function, task, inject, supplier)

    def __init__(
        self,
        function: Callable[..., Any],
        task: str,
        inject: type | None,
        supplier: Supplier | None,
    ) -> None:
        self.task = task
        self._function = function
        self._inject = inject
        self._supplier = supplier
        self._resolved: _Resolved | None = None
        try:
            self._written = read_signature(function)
        except (TypeError, ValueError) as error:
            raise BadTask(task, f"its parameters cannot be known ({error})") from error
        hints = self._hints = read_hints(function, self._written, Payload, inject)
        wanted = wanted_by(self._parameters, hints, task, supplier)
        self.plan = planned(wanted, task, inject, supplier=supplier)
        """What it needs beside the payload."""
        filled = self._filled(hints)
        _check(self._parameters, hints, filled, task)
        for name, hint in hints.items():
            if name not in filled and isinstance(hint, Unresolved) and not hint.may_come:
                raise BadTask(task, _unresolved(name, hint.annotation, hint.error))

    def __str__(self) -> str:
        """What a caller gives: ``(to: str, body: str = '')``."""
        filled = self._filled(self._hints)
        given = [each for each in self._parameters if each.name not in filled]
        return str(inspect.Signature([_unquoted(each) for each in given]))

    @property
    def given(self) -> inspect.Signature:
        """What a caller gives: all but what the worker fills in."""
        return (self._resolved or self._prepare()).binding.given

    def taken(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of these arguments that the function takes by name: all, if it takes the whole
        payload. On failure: TypeError if it wants another one.
        """
        hints = self._found()
        filled = self._filled(hints)
        given = [each for each in self._parameters if each.name not in filled]
        if any(_payload_class(hints[each.name]) for each in given):
            return tuple(names)
        given = [each for each in given if each.kind not in _VARIADIC]
        named = {each.name for each in given}
        for each in given:
            if each.default is Parameter.empty and each.name not in names:
                raise TypeError(f"its parameter {each.name!r} has no default")
        return tuple(name for name in names if name in named)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int = LIMIT) -> bytes:
        """The payload for a call.

        On failure: BadTask for a type that cannot be found, BadArguments for a call that does not
        bind or fit, Unencodable for a value that would not come back, PayloadTooLarge.
        """
        resolved = self._resolved or self._prepare()
        try:
            value = resolved.binding.bind(args, kwargs)
        except TypeError as error:
            raise self._unbound(error) from None
        return resolved.body.write(value, self.task, limit)

    def encode_object(self, body: Mapping[str, Any], limit: int = LIMIT) -> bytes:
        """The payload for arguments by name, in the shape they are stored in; as ``encode``.

        Values may come from JSON: base64 text is taken for bytes here.
        """
        resolved = self._resolved or self._prepare()
        try:
            value = resolved.binding.adopt(body)
        except TypeError as error:
            raise self._unbound(error) from None
        return resolved.body.write(value, self.task, limit, FROM_JSON)

    def decode(self, payload: bytes, context: object = None) -> BoundCall:
        """The ``(args, kwargs)`` to call the function with; ``context`` is what is injected.

        On failure: NotAnObject for what is not a JSON object, BadPayload for one that does not fit,
        BadTask for a type that cannot be found.
        """
        resolved = self._resolved or self._prepare()
        try:
            value = resolved.body.read(payload)
        except Exception as error:  # a type's own code runs here too
            raise self._misread(payload, error, resolved.body) from error
        try:
            return resolved.binding.call(value, context)
        except TypeError as error:
            raise BadPayload(self.task, str(error)) from None

    def arguments(self, payload: bytes) -> dict[str, Any]:
        """What a payload gives, by parameter name, without defaults and what the worker fills in.

        On failure: as ``decode``.
        """
        args, kwargs = self.decode(payload, _FILLED_IN)
        bound = self._written.bind_partial(*args, **kwargs).arguments
        return {name: value for name, value in bound.items() if value is not _FILLED_IN}

    def fill(self, call: BoundCall, made: Mapping[Function, Any], plan: Plan) -> BoundCall:
        """A call from ``decode`` with its dependencies: ``made``, by their makers."""
        args, kwargs = list(call[0]), call[1]
        for name, maker in plan.wanted.items():
            if name in kwargs:
                kwargs[name] = made[maker]
            else:
                args[list(self._written.parameters).index(name)] = made[maker]
        return tuple(args), kwargs

    def plan_with(self, overrides: Mapping[Function, Function]) -> Plan:
        """What it needs, with other makers in the place of some."""
        return planned(self.plan.wanted, self.task, self._inject, overrides, self._supplier)

    def refuse_unmet(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise BadArguments for a direct call that leaves a dependency to a worker."""
        given = self._written.bind_partial(*args, **kwargs).arguments
        for name, maker in self.plan.wanted.items():
            if name not in given:
                why = (
                    f"{name!r} is made by a worker, with {name_of(maker)}; "
                    f"in a direct call, pass it: {name}=..."
                )
                raise BadArguments(self.task, why)

    def encode_result(self, value: Any, limit: int = LIMIT) -> bytes:
        """The JSON for what the function returned.

        A result that is not what the annotation says is kept all the same: the work is done.
        On failure: Unencodable for what has no JSON form, PayloadTooLarge.
        """
        if value is None:
            return b"null"
        resolved = self._resolved or self._prepare()
        try:
            return resolved.result.write(value, self.task, limit, LOOSE)
        except PayloadTooLarge as error:
            raise PayloadTooLarge(self.task, error.size, limit, "max_result") from None

    def decode_result(self, payload: bytes) -> Any:
        """The result by the return annotation, or plain JSON where it does not fit."""
        resolved = self._resolved or self._prepare()
        try:
            return resolved.result.read(payload)
        except Exception:  # a type's own code runs here too
            pass
        try:
            return msgspec.json.decode(payload)
        except (*_NO_JSON, RecursionError) as error:
            raise BadPayload(self.task, f"the stored result is not JSON: {error}") from error

    def _prepare(self) -> _Resolved:
        """Set all at once: threads that come here together may each use their own."""
        hints = self._found()
        filled = self._filled(hints)
        _check(self._parameters, hints, filled, self.task)
        for name, hint in hints.items():
            if name not in filled:
                self._refuse_unresolved(name, hint)
        binding = _binding(self._parameters, hints, filled)
        body = Codec(binding.kind, binding.label)
        result = Codec(carried(hints["return"]), lambda path: f"result{path}")
        self._resolved = _Resolved(binding, body, result)
        return self._resolved

    def _found(self) -> dict[str, Any]:
        """The hints, those looked for again that were missing at the declaration.

        On failure: BadTask for a ``Depends`` that shows up only now.
        """
        if not any(isinstance(hint, Unresolved) for hint in self._hints.values()):
            return self._hints
        again = read_hints(self._function, self._written, Payload, self._inject)
        hints = {
            name: again[name] if isinstance(hint, Unresolved) else hint
            for name, hint in self._hints.items()
        }
        for name in wanted_by(self._parameters, hints, self.task, self._supplier):
            if name not in self.plan.wanted:
                why = (
                    f"its parameter {name!r} is annotated with a type that asks for a dependency "
                    "and was not there yet when the task was declared; define it before the task"
                )
                raise BadTask(self.task, why)
        return hints

    def _refuse_unresolved(self, name: str, hint: Any) -> None:
        """Raise BadTask for a type, or a field of a class, that names what is not there."""
        if isinstance(hint, Unresolved):
            raise BadTask(self.task, _unresolved(name, hint.annotation, hint.error))
        try:
            carried(hint)
        except Exception as error:
            if not is_missing_name(error):
                raise
            note = written(hint).rpartition(".")[2] if isinstance(hint, type) else written(hint)
            raise BadTask(self.task, _unresolved(name, note, error)) from error

    @property
    def _parameters(self) -> Sequence[Parameter]:
        return tuple(self._written.parameters.values())

    def _filled(self, hints: Mapping[str, Any]) -> frozenset[str]:
        """The parameters that are no part of the payload."""
        injected = [each.name for each in self._parameters if _is(hints[each.name], self._inject)]
        return frozenset((*injected, *self.plan.wanted))

    def _unbound(self, error: TypeError) -> BadArguments:
        return BadArguments(self.task, f"{error}; it takes {self}")

    def _misread(self, payload: bytes, error: Exception, body: Codec) -> BadPayload:
        """Tell what is not a JSON object from what is one that does not fit."""
        try:
            found = msgspec.json.decode(payload)
        except RecursionError:
            return BadPayload(self.task, TOO_DEEP)
        except msgspec.ValidationError:  # JSON, with a number that no float can hold
            return BadPayload(self.task, body.explain(error))
        except _NO_JSON as trouble:
            return NotAnObject(self.task, str(trouble))
        if not isinstance(found, dict):
            return NotAnObject(self.task, f"it is {_JSON_TYPES[type(found)]}")
        for pattern, advice in _EVOLUTION:
            match = pattern.fullmatch(str(error))
            if match is not None:
                return BadPayload(self.task, advice.format(match[1]))
        return BadPayload(self.task, body.explain(error))


def encode_plain(body: Mapping[str, Any], task: str, limit: int = LIMIT) -> bytes:
    """The payload for a task whose signature is not known here."""
    if not isinstance(body, Mapping):
        raise BadArguments(task, f"the payload must be a dict, not a {type(body).__name__}")
    return _PLAIN.write(dict(body), task, limit, FROM_JSON)


_PLAIN: Final = Codec(dict[str, Any], lambda path: f"payload{path}")


_FILLED_IN: Final = object()

_NO_JSON: Final = (msgspec.DecodeError, ValueError)

_EVOLUTION: Final = (
    (
        re.compile(r"Object missing required field `([^`]*)`"),
        "argument {!r} is missing; give the parameter a default while older jobs wait",
    ),
    (
        re.compile(r"Object contains unknown field `([^`]*)`"),
        "there is no parameter {!r}; keep it, with a default, while older jobs wait",
    ),
)

_JSON_TYPES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "an array",
}

_VARIADIC: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class _Bare(str):
    """An annotation that is text, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _unquoted(parameter: Parameter) -> Parameter:
    note = parameter.annotation
    return parameter.replace(annotation=_Bare(note)) if isinstance(note, str) else parameter


def _is(hint: Any, kind: type | None) -> bool:
    return kind is not None and core_class(hint) is kind


def _payload_class(hint: Any) -> type[Payload] | None:
    kind = core_class(hint)
    return kind if kind is not None and issubclass(kind, Payload) else None


def _unresolved(name: str, annotation: str, error: Exception) -> str:
    """Why a task cannot be called whose annotation has no type."""
    whose = "its result" if name == "return" else f"its parameter {name!r}"
    if is_missing_name(error):
        return (
            f"{whose} is annotated {annotation}, but {error} when the program runs; "
            "import it outside `if TYPE_CHECKING:`, or define it before the task"
        )
    return (
        f"{whose} is annotated {annotation}, which is not a type "
        f"({type(error).__name__}: {error}); annotate it with one, or leave the annotation out"
    )


def _check(
    parameters: Sequence[Parameter], hints: Mapping[str, Any], filled: frozenset[str], task: str
) -> None:
    """Refuse at the declaration what could never be called."""
    given = [each for each in parameters if each.name not in filled]
    for each in parameters:
        is_special = each not in given or _payload_class(hints[each.name])
        if is_special and each.kind in _VARIADIC:
            raise BadTask(task, f"its parameter '{each}' cannot take any number of arguments")
    for each in given:
        if _payload_class(hints[each.name]) and len(given) > 1:
            others = ", ".join(repr(other.name) for other in given if other is not each)
            raise BadTask(
                task,
                f"its parameter {each.name!r} takes the whole payload, which leaves nothing for "
                f"{others}; read them from {each.name!r}",
            )


def _binding(
    parameters: Sequence[Parameter], hints: Mapping[str, Any], injected: frozenset[str]
) -> Binding:
    for each in parameters:
        payload = _payload_class(hints[each.name])
        if payload is not None:
            return Whole(parameters, injected, payload)
    shape = Direct if Direct.suits(parameters) else General
    return shape(parameters, injected, hints)
