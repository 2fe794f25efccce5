"""Errors: their facts are the attributes that a class annotates, as those of a dataclass."""

from __future__ import annotations

import copy
import pickle

import pytest

from penstock.errors import BadOption, EngineReentered, EngineTimeout, PenstockError, UsageError


def test_facts_come_in_order_or_by_name():
    by_order, by_name = BadOption("limit", 0, "give 1"), BadOption("limit", why="give 1", value=0)

    assert by_order.__dict__ == by_name.__dict__ == {"name": "limit", "value": 0, "why": "give 1"}
    assert str(by_order) == str(by_name) == "limit=0: give 1"
    assert repr(by_order) == "BadOption(name='limit', value=0, why='give 1')"


def test_a_fact_may_have_a_default():
    assert EngineReentered("it").why == "it was interrupted there"
    assert EngineReentered("it", "so").why == "so"


def test_facts_are_inherited():
    error = EngineTimeout("the store", "why")

    assert (error.engine, error.why) == ("the store", "why")


@pytest.mark.parametrize(
    "values, named",
    [
        (("limit",), {}),
        (("limit", 0, "why", "more"), {}),
        (("limit", 0, "why"), {"name": "twice"}),
        (("limit", 0, "why"), {"other": 1}),
    ],
)
def test_wrong_facts_are_refused(values, named):
    with pytest.raises(TypeError, match=r"BadOption takes name, value, why; "):
        BadOption(*values, **named)


def test_an_error_without_facts_is_a_sentence():
    assert str(UsageError("write it so")) == "write it so"
    assert repr(UsageError("write it so")) == "UsageError('write it so')"
    assert str(PenstockError("no")) == "no"


@pytest.mark.parametrize("error", [BadOption("limit", 0, "give 1"), UsageError("a sentence")])
def test_it_can_be_copied_and_pickled(error):
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
