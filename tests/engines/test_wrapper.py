"""The engine around another engine: every verb of the contract is forwarded through ``_call``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engines.engine import Engine
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.wrapper import EngineWrapper

VERBS = sorted(name for name, it in vars(Engine).items() if inspect.iscoroutinefunction(it))


class Noting(EngineWrapper):
    """Keeps the names of the verbs that were called."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.called: list[str] = []

    async def _call(
        self, verb: str, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        self.called.append(verb)
        return await super()._call(verb, call, *args, **kwargs)


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_is_forwarded_with_its_arguments_and_its_answer(verb):
    answer, given = object(), []

    async def inner_verb(*args: object, **kwargs: object) -> object:
        given.append((args, kwargs))
        return answer

    wrapper = Noting(SimpleNamespace(traits=None, clock=None, **{verb: inner_verb}))
    parameters = list(inspect.signature(getattr(Engine, verb)).parameters.values())[1:]
    named = {each.name: object() for each in parameters if each.kind is each.KEYWORD_ONLY}
    args = tuple(object() for each in parameters if each.kind is not each.KEYWORD_ONLY)

    returned = await getattr(wrapper, verb)(*args, **named)

    assert given == [(args, named)]
    assert wrapper.called == [verb]
    is_silent = inspect.signature(getattr(Engine, verb)).return_annotation == "None"
    assert returned is (None if is_silent else answer)


def test_no_verb_is_left_to_the_base_class():
    assert vars(EngineWrapper).keys() >= set(VERBS)


def test_traits_clock_and_polls_are_those_of_the_engine_inside(clock):
    inner = MemoryEngine(MemoryStore(), clock)
    wrapper = EngineWrapper(inner)
    heard: list[str | None] = []
    wrapper.polls = heard.append

    inner.polls("a reason")

    assert heard == ["a reason"]
    assert wrapper.polls == inner.polls
    assert (wrapper.traits, wrapper.clock) == (inner.traits, inner.clock)
