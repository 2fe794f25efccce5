"""What a task needs that its callers do not pass: its dependencies, and the order to make them in.

    def session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    @app.task
    def report(id: int, db: Session = Depends(session)) -> None: ...

A dependency may have dependencies of its own, and a ``Context`` parameter. Each is made once for an
attempt, before those that need it, however many they are.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, overload

from penstock.core.annotations import Unresolved, core_class, read_hints, read_signature
from penstock.core.hooks import Function, Manner, manner_of, name_of, refuse_hidden_yield
from penstock.errors import BadHook, BadTask

T = TypeVar("T")

DEPENDENCY: Final = "a dependency"


@dataclass(frozen=True, slots=True, eq=False)
class Dependency:
    """The mark that ``Depends`` leaves at a parameter."""

    maker: Function

    def __repr__(self) -> str:
        return f"Depends({getattr(self.maker, '__name__', self.maker)})"


@overload
def Depends(maker: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Depends(maker: Callable[..., Iterator[T]], /) -> T: ...
@overload
def Depends(maker: Callable[..., Coroutine[Any, Any, T]], /) -> T: ...
@overload
def Depends(maker: Callable[..., T], /) -> T: ...
def Depends(maker: Function, /) -> Any:
    """Let the worker fill a parameter with what ``maker`` makes, anew for each attempt.

    As a default, ``db: Session = Depends(session)``, or in the annotation, ``db: Annotated[Session,
    Depends(session)]``; the latter also suits a maker that returns an iterator as its value.

    ``maker`` is a function, a coroutine function, or a generator function of either kind with one
    yield: what comes after the yield always runs when the attempt ends, and an exception that ends
    it is raised there. Callers never pass such a parameter, except in a direct call of the task.
    """
    if not callable(maker):
        raise BadHook(
            repr(maker), DEPENDENCY, "give the function that makes it, without calling it"
        )
    try:
        hash(maker)
    except TypeError:
        why = "it cannot be hashed, so it could not be found again; give a function that calls it"
        raise BadHook(repr(maker), DEPENDENCY, why) from None
    return Dependency(maker)


@dataclass(frozen=True, slots=True)
class Filling:
    """What goes into one parameter of a dependency: another one, or the context."""

    name: str
    maker: Function | None
    by_place: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One dependency to make."""

    maker: Function
    manner: Manner
    fillings: tuple[Filling, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one task needs."""

    wanted: Mapping[str, Function]
    """By the parameter it goes into."""
    steps: tuple[Step, ...]
    """In an order in which each finds what it needs."""

    def refuse_async(self, task: str) -> None:
        """Raise ``BadTask`` if a sync task could not make all of it."""
        for step in self.steps:
            if step.manner.is_async:
                raise not_awaited(step.maker, task)


def not_awaited(maker: Function, task: str) -> BadTask:
    """What is wrong with a sync task that needs what only a loop can make."""
    why = (
        f"its dependency {name_of(maker)} is async and the task is not; "
        "make the task an async def, or the dependency a plain function"
    )
    return BadTask(task, why)


NOTHING: Final = Plan(MappingProxyType({}), ())

_AS_DECLARED: Final[Mapping[Function, Function]] = MappingProxyType({})

Supplier = Callable[[Parameter, Any], Function | None]
"""Makes what a parameter without a mark takes, by its type; None: callers pass it."""


def wanted_by(
    parameters: Sequence[Parameter],
    hints: Mapping[str, Any],
    task: str,
    supplier: Supplier | None = None,
) -> dict[str, Function]:
    """The parameters that are marked with ``Depends``, and the makers of what goes into them."""
    wanted = {}
    for each in parameters:
        mark = _mark(each, hints[each.name], task)
        maker = mark.maker if mark is not None else None
        if maker is None and supplier is not None:
            maker = supplier(each, hints[each.name])
        if maker is not None:
            wanted[each.name] = maker
    return wanted


def planned(
    wanted: Mapping[str, Function],
    task: str,
    inject: type | None,
    overrides: Mapping[Function, Function] = _AS_DECLARED,
    supplier: Supplier | None = None,
) -> Plan:
    """How to make what is wanted, or what ``overrides`` has in its place.

    On failure: BadTask for a circle, or for a parameter of a dependency that nothing fills.
    """
    if not wanted:
        return NOTHING
    actual = {name: overrides.get(maker, maker) for name, maker in wanted.items()}
    steps: dict[Function, Step] = {}

    def plan(maker: Function, trail: tuple[Function, ...]) -> None:
        if maker in trail:
            circle = " needs ".join(map(name_of, (*trail[trail.index(maker) :], maker)))
            raise BadTask(task, f"its dependencies go round in a circle: {circle}")
        if maker in steps:
            return
        step = _step(maker, task, inject, overrides, supplier)
        for filling in step.fillings:
            if filling.maker is not None:
                plan(filling.maker, (*trail, maker))
        steps[maker] = step

    for maker in actual.values():
        plan(maker, ())
    return Plan(MappingProxyType(actual), tuple(steps.values()))


def _step(
    maker: Function,
    task: str,
    inject: type | None,
    overrides: Mapping[Function, Function],
    supplier: Supplier | None,
) -> Step:
    try:
        refuse_hidden_yield(maker, DEPENDENCY)
        written = read_signature(maker)
    except (BadHook, ValueError, TypeError) as error:
        raise BadTask(task, f"its dependency {name_of(maker)} is of no use: {error}") from error
    parameters = list(written.parameters.values())
    source = maker.__init__ if inspect.isclass(maker) else maker
    hints = read_hints(source, written, inject)
    needs = wanted_by(parameters, hints, task, supplier)
    fillings = []
    for each in parameters:
        by_place = each.kind is Parameter.POSITIONAL_ONLY
        if each.name in needs:
            actual = overrides.get(needs[each.name], needs[each.name])
            fillings.append(Filling(each.name, actual, by_place))
        elif inject is not None and core_class(hints[each.name]) is inject:
            fillings.append(Filling(each.name, None, by_place))
        elif each.default is Parameter.empty and each.kind not in _VARIADIC:
            why = (
                f"nothing fills the parameter {each.name!r} of its dependency {name_of(maker)}; "
                "give it a default, or a Depends(...) of its own"
            )
            raise BadTask(task, why)
    return Step(maker, manner_of(maker), tuple(fillings))


_VARIADIC: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _mark(parameter: Parameter, hint: Any, task: str) -> Dependency | None:
    if isinstance(parameter.default, Dependency):
        return parameter.default
    if get_origin(hint) is Annotated:
        return next((each for each in get_args(hint)[1:] if isinstance(each, Dependency)), None)
    note = hint.annotation if isinstance(hint, Unresolved) else ""
    if "Annotated[" in note and "Depends(" in note:
        why = (
            f"its parameter {parameter.name!r} is annotated {note}, which cannot be read; import "
            f"those names outside TYPE_CHECKING, or give it a default: = Depends(...)"
        )
        raise BadTask(task, why)
    if _hides_mark(hint):
        why = (
            f"its parameter {parameter.name!r} has a Depends(...) deep inside its annotation; put "
            "Annotated outermost, such as Annotated[Session | None, Depends(...)]"
        )
        raise BadTask(task, why)
    return None


def _hides_mark(hint: Any) -> bool:
    return any(isinstance(part, Dependency) or _hides_mark(part) for part in get_args(hint))
