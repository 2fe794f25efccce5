"""Which functions can be hooks, in which order they are kept, and what is said of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from penstock.core.hooks import Hooks, Manner, manner_of
from penstock.errors import BadHook


def plain() -> None: ...


async def awaited() -> None: ...


def yielding() -> Iterator[None]:
    yield


async def awaited_yielding():
    yield


class Called:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "manner"),
    [
        (plain, Manner.RETURN),
        (int, Manner.RETURN),
        (awaited, Manner.AWAIT),
        (Called(), Manner.AWAIT),
        (yielding, Manner.YIELD),
        (partial(yielding), Manner.YIELD),
        (awaited_yielding, Manner.AWAIT_YIELD),
        (partial(Called()), Manner.AWAIT),
        (partial(partial(yielding)), Manner.YIELD),
    ],
)
def test_a_function_has_one_manner(function, manner):
    assert manner_of(function) is manner


def test_stages_are_kept_in_the_order_of_their_declaration():
    hooks = Hooks()
    hooks.add_startup(yielding)
    hooks.add_shutdown(awaited)
    hooks.add_startup(plain)

    assert [(stage.function, stage.at_end) for stage in hooks.stages] == [
        (yielding, False),
        (awaited, True),
        (plain, False),
    ]


def test_a_hook_that_is_declared_anew_takes_the_place_it_had():
    def again() -> None: ...

    again.__qualname__ = "plain"
    hooks = Hooks()
    for function in (plain, awaited, again):
        hooks.add_startup(function)

    assert [stage.function for stage in hooks.stages] == [again, awaited]


def test_hooks_made_inside_a_function_are_many_under_one_name():
    def made():
        def hook() -> None: ...

        return hook

    hooks = Hooks()
    hooks.add_shutdown(made())
    hooks.add_shutdown(made())

    assert len(hooks.stages) == 2


def takes_one(ctx: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("add", "function", "message"),
    [
        (
            Hooks.add_startup,
            5,
            "5 cannot be a start-up hook: it is not a function; decorate a def or an async def",
        ),
        (
            Hooks.add_startup,
            takes_one,
            "test_hooks.takes_one cannot be a start-up hook: missing a required argument: 'ctx'; "
            "it is called with no argument",
        ),
        (
            Hooks.add_startup,
            contextmanager(yielding),
            "test_hooks.yielding cannot be a start-up hook: a decorator, such as contextmanager, "
            "hides that it yields; leave the decorator out",
        ),
        (
            Hooks.add_shutdown,
            yielding,
            "test_hooks.yielding cannot be a shutdown hook: it yields; declare it with "
            "@app.startup",
        ),
        (
            Hooks.add_middleware,
            yielding,
            "test_hooks.yielding cannot be a middleware: too many positional arguments; it is "
            "called with one argument, the Context",
        ),
        (
            Hooks.add_middleware,
            lambda ctx: None,
            "test_hooks.<lambda> cannot be a middleware: it does not yield; write a generator with "
            "one yield, where the attempt runs",
        ),
    ],
)
def test_a_function_that_cannot_be_a_hook_is_told_why(add, function, message):
    with pytest.raises(BadHook) as caught:
        add(Hooks(), function)
    assert str(caught.value) == message
