"""How a call becomes one value that can be written, and such a value a call again.

Three shapes, by the function's parameters:

- ``Direct``: every parameter can be given by name. The value is a Struct with a field for each;
  making it binds the call, in C.
- ``General``: with ``/``, ``*args`` or ``**kwargs``. ``*args`` is a list under its own name and
  ``**kwargs`` an object under its own name, so that nothing in them clashes with a parameter.
- ``Whole``: a ``Payload`` parameter takes the body itself.

What was not given is UNSET: it is not written, and the function's default applies at run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from inspect import Parameter
from inspect import Signature as Parameters
from types import GenericAlias
from typing import Any, TypeAlias, Unpack, get_args, get_origin

from msgspec import UNSET, Struct, defstruct
from msgspec.structs import asdict

from penstock.core.json_types import UNTYPED, carried

BoundCall: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Binding(ABC):
    """Between calls and values of one type, ``kind``. What does not bind is a TypeError."""

    kind: Any

    def __init__(self, parameters: Sequence[Parameter], injected: frozenset[str]) -> None:
        self.parameters = parameters
        self.injected = injected
        self.given = Parameters([each for each in parameters if each.name not in injected])

    @abstractmethod
    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The value for a call."""

    @abstractmethod
    def adopt(self, body: Mapping[str, Any]) -> Any:
        """The value for a body by parameter name."""

    @abstractmethod
    def call(self, value: Any, context: object) -> BoundCall:
        """The call for a value; ``context`` goes to the injected parameters."""

    @abstractmethod
    def label(self, path: str) -> str:
        """A place in the value, in words."""

    def refuse_injected(self, names: Mapping[str, Any]) -> None:
        """A caller does not pass what the worker fills in."""
        for name in names:
            if name in self.injected:
                raise TypeError(f"{name!r} is filled in by the worker")


class Whole(Binding):
    """The one parameter is the body."""

    def __init__(
        self, parameters: Sequence[Parameter], injected: frozenset[str], payload: type
    ) -> None:
        super().__init__(parameters, injected)
        self.kind = dict[str, Any]
        self._payload = payload

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        self.refuse_injected(kwargs)
        given = self.given.bind(*args, **kwargs).arguments
        return self.adopt(next(iter(given.values()), {}))

    def adopt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(body, Mapping):
            raise TypeError(f"the payload must be a dict, not a {type(body).__name__}")
        return dict(body)

    def call(self, value: dict[str, Any], context: object) -> BoundCall:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in self.parameters:
            filling = context if each.name in self.injected else self._payload(value)
            if each.kind is Parameter.POSITIONAL_ONLY:
                args.append(filling)
            else:
                kwargs[each.name] = filling
        return tuple(args), kwargs

    def label(self, path: str) -> str:
        return f"payload{path}"


class _Fields(Binding):
    """A Struct with a field per parameter."""

    def adopt(self, body: Mapping[str, Any]) -> Any:
        if not isinstance(body, Mapping):
            raise TypeError(f"the arguments must be a dict, not a {type(body).__name__}")
        for name in body:
            if name not in self.given.parameters:
                self.refuse_injected(body)
                raise TypeError(f"got an unexpected argument {name!r}")
        for each in self.given.parameters.values():
            if each.name not in body and _is_required(each):
                raise TypeError(f"missing a required argument: {each.name!r}")
        return self.fill(body)

    @abstractmethod
    def fill(self, arguments: Mapping[str, Any]) -> Any:
        """The Struct for arguments by parameter name."""

    def label(self, path: str) -> str:
        if not path:
            return "the arguments"
        name = path.removeprefix(".").partition("[")[0].partition(".")[0].partition(" ")[0]
        return f"argument {name!r}{path[1 + len(name) :]}"


class Direct(_Fields):
    """Every parameter can be given by name."""

    @staticmethod
    def suits(parameters: Sequence[Parameter]) -> bool:
        """Names in dunder style are not for Structs."""
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        return all(each.kind in kinds and not each.name.startswith("__") for each in parameters)

    def __init__(
        self, parameters: Sequence[Parameter], injected: frozenset[str], hints: Mapping[str, Any]
    ) -> None:
        super().__init__(parameters, injected)
        by_place: list[Any] = []
        by_name: list[Any] = []
        for each in self.given.parameters.values():
            is_keyword = each.kind is Parameter.KEYWORD_ONLY
            (by_name if is_keyword else by_place).append(_field(each.name, each, hints))
        # Of a Struct that inherits keyword-only fields, only its own can be given by place.
        names = defstruct("Names", by_name, kw_only=True)
        self.kind = defstruct("Arguments", by_place, bases=(names,), forbid_unknown_fields=True)
        self._may_lack = any(not _is_required(each) for each in self.given.parameters.values())

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return self.kind(*args, **kwargs)
        except TypeError:
            self.refuse_injected(kwargs)
            self.given.bind(*args, **kwargs)  # says it in Python's words
            raise

    def fill(self, arguments: Mapping[str, Any]) -> Any:
        return self.kind(**arguments)

    def call(self, value: Struct, context: object) -> BoundCall:
        kwargs = asdict(value)
        if self._may_lack:
            kwargs = {name: item for name, item in kwargs.items() if item is not UNSET}
        for name in self.injected:
            kwargs[name] = context
        return (), kwargs


class General(_Fields):
    """Some parameters can only be given by place, or take any number of arguments."""

    def __init__(
        self, parameters: Sequence[Parameter], injected: frozenset[str], hints: Mapping[str, Any]
    ) -> None:
        super().__init__(parameters, injected)
        given = self.given.parameters
        self._attributes = {name: f"field_{place}" for place, name in enumerate(given)}
        fields = [_field(self._attributes[name], each, hints) for name, each in given.items()]
        self.kind = defstruct(
            "Arguments",
            fields,
            kw_only=True,
            forbid_unknown_fields=True,
            rename={attribute: name for name, attribute in self._attributes.items()},
        )
        kinds = {each.kind: each.name for each in parameters}
        self._rest = kinds.get(Parameter.VAR_POSITIONAL, "")
        self._more = kinds.get(Parameter.VAR_KEYWORD, "")
        by_place = {each.name for each in parameters if each.kind is Parameter.POSITIONAL_ONLY}
        self._namesakes = by_place if self._more else frozenset()
        by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        self._by_name = {each.name for each in parameters if each.kind in by_name}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.refuse_injected(kwargs)
        # Python takes these for **kwargs; Signature.bind did not always.
        namesakes = {name: kwargs[name] for name in kwargs if name in self._namesakes}
        others = {name: item for name, item in kwargs.items() if name not in namesakes}
        arguments = self.given.bind(*args, **others).arguments
        if namesakes:
            arguments[self._more] = arguments.get(self._more, {}) | namesakes
        if self._rest in arguments:
            arguments[self._rest] = list(arguments[self._rest])  # as it will be read
        return self.fill(arguments)

    def fill(self, arguments: Mapping[str, Any]) -> Any:
        return self.kind(**{self._attributes[name]: item for name, item in arguments.items()})

    def call(self, value: Struct, context: object) -> BoundCall:
        """Positional where it must be: a gap before a given argument takes its default."""
        by_place: list[tuple[Parameter, Any]] = []
        kwargs: dict[str, Any] = {}
        surplus: dict[str, Any] = {}
        items = {each.name: self._item(value, each.name, context) for each in self.parameters}
        rest = items.get(self._rest, ())
        rest = () if rest is UNSET else rest
        for each in self.parameters:
            item = items[each.name]
            match each.kind:
                case Parameter.POSITIONAL_ONLY:
                    by_place.append((each, item))
                case Parameter.POSITIONAL_OR_KEYWORD if rest:
                    by_place.append((each, item))
                case Parameter.VAR_KEYWORD if item is not UNSET:
                    surplus = item
                case Parameter.POSITIONAL_OR_KEYWORD | Parameter.KEYWORD_ONLY:
                    if item is not UNSET:
                        kwargs[each.name] = item
        while by_place and by_place[-1][1] is UNSET and not rest:
            by_place.pop()
        args = [each.default if item is UNSET else item for each, item in by_place]
        for name in surplus:
            if name in self._by_name:
                raise TypeError(f"got multiple values for argument {name!r}")
        return (*args, *rest), {**kwargs, **surplus}

    def _item(self, value: Struct, name: str, context: object) -> Any:
        return context if name in self.injected else getattr(value, self._attributes[name])


def _field(attribute: str, parameter: Parameter, hints: Mapping[str, Any]) -> Any:
    is_annotated = parameter.annotation is not Parameter.empty
    hint = hints[parameter.name] if is_annotated else UNTYPED
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            hint = GenericAlias(list, hint)
        case Parameter.VAR_KEYWORD:
            hint = (
                get_args(hint)[0] if get_origin(hint) is Unpack else GenericAlias(dict, (str, hint))
            )
    required = (attribute, carried(hint))
    return required if _is_required(parameter) else (*required, UNSET)


def _is_required(parameter: Parameter) -> bool:
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and parameter.kind not in variadic
