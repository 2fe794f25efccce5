"""What an app lets run around its jobs: filled by its decorators, read by its workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from penstock.core.transactions import Effects
from penstock.errors import BadHook

Function = Callable[..., Any]


class Manner(Enum):
    """How a function gives what it makes."""

    RETURN = auto()
    AWAIT = auto()
    YIELD = auto()
    """It is a generator: what comes after its one yield cleans up."""
    AWAIT_YIELD = auto()
    """It is an async generator."""

    @property
    def is_async(self) -> bool:
        """It needs a loop."""
        return self in (Manner.AWAIT, Manner.AWAIT_YIELD)

    @property
    def cleans_up(self) -> bool:
        """It goes on after what it was made for has ended."""
        return self in (Manner.YIELD, Manner.AWAIT_YIELD)


def manner_of(function: Function) -> Manner:
    """How a function, or an object that is called as one, gives what it makes."""
    function = _whole(function)
    faces = (function, type(function).__call__)
    if any(map(inspect.isasyncgenfunction, faces)):
        return Manner.AWAIT_YIELD
    if any(map(inspect.isgeneratorfunction, faces)):
        return Manner.YIELD
    return Manner.AWAIT if any(map(inspect.iscoroutinefunction, faces)) else Manner.RETURN


def _whole(function: Function) -> Function:
    """What a partial calls; any other function is whole already."""
    while isinstance(function, partial):
        function = function.func
    return function


def name_of(function: Function) -> str:
    """What people call a function: its module and name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(function)


def refuse_hidden_yield(function: Function, role: str) -> None:
    """Raise ``BadHook`` for a decorated generator: what it returns would be taken for its value."""
    bare = inspect.unwrap(_whole(function))
    if bare is not function and manner_of(bare).cleans_up and not manner_of(function).cleans_up:
        why = "a decorator, such as contextmanager, hides that it yields; leave the decorator out"
        raise BadHook(name_of(function), role, why)


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """One function, and how it is to be called."""

    function: Function
    manner: Manner

    @property
    def name(self) -> str:
        """What people call it."""
        return name_of(self.function)


@dataclass(frozen=True, slots=True, eq=False)
class Stage(Hook):
    """What runs when a worker starts, or when it ends."""

    at_end: bool


STARTUP: Final = "a start-up hook"
SHUTDOWN: Final = "a shutdown hook"
MIDDLEWARE: Final = "a middleware"


class Hooks:
    """The hooks of one app, in the order of their declaration. One that is declared anew, by a
    reload or a notebook's cell that runs again, takes the place it had.
    """

    __slots__ = ("_overriding", "_stand_ins", "effects", "middleware", "overrides", "stages")

    def __init__(self) -> None:
        self.stages: tuple[Stage, ...] = ()
        self.middleware: tuple[Hook, ...] = ()
        self.overrides: Mapping[Function, Function] = {}
        """What to make instead of a dependency, while a test says so."""
        self._overriding: tuple[tuple[Function, Function], ...] = ()
        self.effects: Effects | None = None
        """Where transactional tasks write, if there are any."""
        self._stand_ins: tuple[Effects, ...] = ()

    def add_startup(self, function: Function) -> None:
        """Run a function when a worker starts; what comes after its yield, when it ends."""
        self._add_stage(function, STARTUP, at_end=False)

    def add_shutdown(self, function: Function) -> None:
        """Run a function when a worker ends."""
        if _checked(function, SHUTDOWN).cleans_up:
            raise BadHook(name_of(function), SHUTDOWN, "it yields; declare it with @app.startup")
        self._add_stage(function, SHUTDOWN, at_end=True)

    def add_middleware(self, function: Function) -> None:
        """Wrap a generator around every attempt."""
        manner = _checked(function, MIDDLEWARE, "ctx")
        if not manner.cleans_up:
            why = "it does not yield; write a generator with one yield, where the attempt runs"
            raise BadHook(name_of(function), MIDDLEWARE, why)
        self.middleware = _added(self.middleware, Hook(function, manner))

    @contextmanager
    def override(self, maker: Function, instead: Function) -> Iterator[None]:
        """Call another function instead of a maker, for a while.

        The latest counts. Those that overlap may end in any order: none outlives its block.
        """
        mine = (maker, instead)
        self._overriding = (*self._overriding, mine)
        self.overrides = dict(self._overriding)
        try:
            yield
        finally:
            self._overriding = tuple(each for each in self._overriding if each is not mine)
            self.overrides = dict(self._overriding)

    @property
    def stand_in(self) -> Effects | None:
        """Where transactional tasks write instead, while a test says so."""
        return self._stand_ins[-1] if self._stand_ins else None

    def lend(self, effects: Effects) -> None:
        """Let transactional tasks write there instead; the latest counts."""
        self._stand_ins = (*self._stand_ins, effects)

    def take_back(self, effects: Effects) -> None:
        """No longer; those that were lent may be taken back in any order."""
        self._stand_ins = tuple(each for each in self._stand_ins if each is not effects)

    def _add_stage(self, function: Function, role: str, *, at_end: bool) -> None:
        self.stages = _added(self.stages, Stage(function, _checked(function, role), at_end))


def _checked(function: Function, role: str, *arguments: str) -> Manner:
    """The manner of a function that can be called with these arguments."""
    if inspect.isclass(function) or not callable(function):
        raise BadHook(repr(function), role, "it is not a function; decorate a def or an async def")
    refuse_hidden_yield(function, role)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        taken = "one argument, the Context" if arguments else "no argument"
        raise BadHook(name_of(function), role, f"{error}; it is called with {taken}") from None
    return manner_of(function)


def _added(old: tuple[Any, ...], new: Any) -> tuple[Any, ...]:
    """With ``new`` in the place of its older self, else at the end."""
    if "<" not in new.name:  # functions inside others, and lambdas, are many under one name
        for place, each in enumerate(old):
            if each.name == new.name:
                return (*old[:place], new, *old[place + 1 :])
    return (*old, new)
