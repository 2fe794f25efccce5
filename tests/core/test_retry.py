"""Retry policies: what is declared, when it retries, and when it is over."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import retry
from penstock.core.retry import RETRIES, Custom, Never
from penstock.errors import BadDuration, BadPolicy

# Untyped on purpose: what a type checker refuses must be refused at run too.
Delays: Any = retry.Delays
Exponential: Any = retry.Exponential
Fixed: Any = retry.Fixed
PerException: Any = retry.PerException
make_policy: Any = retry.make_policy

ERROR = RuntimeError("boom")


def waits(policy, *, chance=0.0, error=ERROR, most=20):
    """All delays a policy gives until it is over."""
    found: list[float] = []
    for failures in range(1, most + 1):
        wait = policy.next(failures, error, chance)
        if wait is None:
            return found
        found.append(wait)
    return found


# --- what may be written ------------------------------------------------------------------------


def test_the_default_is_three_retries_exponential_with_jitter():
    assert make_policy() == Exponential(3) == Exponential()
    assert RETRIES == 3
    assert waits(make_policy()) == [2, 4, 8]
    assert waits(make_policy(), chance=0.5) == [1.5, 3, 6]


@pytest.mark.parametrize("nothing", [0, None, False, []])
def test_nothing_means_no_retries(nothing):
    assert waits(make_policy(nothing)) == []


def test_a_number_is_that_many_exponential_retries():
    assert waits(make_policy(5)) == [2, 4, 8, 16, 32]


def test_a_list_is_one_retry_per_delay():
    assert waits(make_policy([1, "5s", timedelta(minutes=1)])) == [1, 5, 60]
    assert waits(make_policy((0.5,))) == [0.5]


@pytest.mark.parametrize(
    "policy", [Never(), Exponential(1), Fixed(1), Delays([1]), PerException({}), Custom(print)]
)
def test_a_policy_is_taken_as_it_is(policy):
    assert make_policy(policy) is policy


def test_a_function_decides_for_itself():
    policy = make_policy(lambda failures, error: f"{failures}m" if failures < 3 else None)
    assert waits(policy) == [60, 120]


# --- the policies -------------------------------------------------------------------------------


def test_exponential_waits_grow_up_to_the_cap():
    policy = Exponential(retries=6, base="2s", factor=3, cap="1m", jitter=0)
    assert waits(policy, chance=0.99) == [2, 6, 18, 54, 60, 60]


def test_jitter_takes_a_share_of_the_wait_by_chance():
    policy = Exponential(base=10, jitter=0.2)
    assert policy.next(1, ERROR, 0.0) == 10
    assert policy.next(1, ERROR, 0.5) == pytest.approx(9)
    assert policy.next(1, ERROR, 0.999999) == pytest.approx(8, abs=1e-4)


def test_a_fixed_wait_is_always_the_same():
    assert waits(Fixed("30s")) == [30, 30, 30]
    assert waits(Fixed(30, retries=5)) == [30] * 5
    assert waits(Fixed(30, 1, jitter=1), chance=0.5) == [15]


def test_delays_repeat_the_last_or_are_cut_by_retries():
    assert waits(Delays([1, 2], retries=4)) == [1, 2, 2, 2]
    assert waits(Delays([1, 2, 3], retries=2)) == [1, 2]
    assert waits(Delays([10], jitter=0.5), chance=0.5) == [7.5]


class Refused(ConnectionError):
    pass


def test_the_nearest_class_of_the_error_decides():
    policy = PerException(
        {OSError: 1, ConnectionError: Fixed(7, 2), ValueError: None, KeyError: ["1m"]},
        default=[3],
    )
    assert waits(policy, error=Refused()) == [7, 7]
    assert waits(policy, error=FileNotFoundError()) == [2]
    assert waits(policy, error=UnicodeError()) == []
    assert waits(policy, error=KeyError("x")) == [60]
    assert waits(policy, error=RuntimeError()) == [3]


def test_an_unlisted_error_follows_the_default_policy():
    assert waits(PerException({ValueError: None})) == [2, 4, 8]
    assert waits(PerException({ConnectionError: 1}, default=None)) == []


def test_policies_per_exception_nest():
    inner = PerException({ConnectionError: [5]}, default=None)
    assert waits(PerException({OSError: inner}), error=ConnectionError()) == [5]


def test_policies_are_frozen_data():
    policy = Exponential(base="2s")
    with pytest.raises(AttributeError):
        policy.base = 5.0
    assert policy == Exponential(base=2)
    assert hash(policy) == hash(Exponential(base=2))
    assert repr(policy) == "Exponential(retries=3, base=2.0, factor=2.0, cap=3600.0, jitter=0.5)"
    exceptions: dict[Any, Any] = {ValueError: 1}
    per_exception = PerException(exceptions)
    exceptions[OSError] = 2
    assert list(per_exception.policies) == [ValueError]


@settings(deadline=None)
@given(
    failures=st.integers(1, 10**30),
    chance=st.floats(0, 1, exclude_max=True),
    base=st.floats(0, 1000),
    factor=st.floats(1, 1e6),
    jitter=st.floats(0, 1),
)
def test_no_number_of_failures_overflows_or_exceeds_the_cap(failures, chance, base, factor, jitter):
    policy = Exponential(10**31, base=base, factor=factor, cap=5000, jitter=jitter)
    assert 0 <= policy.next(failures, ERROR, chance) <= 5000


def test_a_base_of_zero_never_waits():
    assert Exponential(10**400, base=0).next(10**399, ERROR, 0.5) == 0


def test_huge_failure_numbers_keep_the_last_delay():
    assert Delays([1, 2], retries=10**400).next(10**399, ERROR, 0.0) == 2


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "value", "why"),
    [
        (lambda: make_policy(-1), -1, "retries must not be negative"),
        (lambda: make_policy(True), True, "retries must be a whole number"),
        (lambda: make_policy(2.0), 2.0, "it is of type float"),
        (lambda: make_policy("3"), "3", "it is of type str"),
        (lambda: make_policy({}), {}, "it is of type dict"),
        (lambda: make_policy(Exponential), Exponential, "it is a class; give an instance"),
        (lambda: make_policy([1, "5x"]), "5x", "each delay has an unknown unit 'x'"),
        (lambda: make_policy([1, True]), True, "each delay is a truth value"),
        (lambda: Exponential(1.5), 1.5, "retries must be a whole number"),
        (lambda: Exponential(None), None, "retries must be a whole number"),
        (lambda: Exponential(base=-1), -1, "base is negative"),
        (lambda: Exponential(base=math.nan), math.nan, "base is not a number"),
        (lambda: Exponential(cap="1s"), "1s", "cap is below base (2.0)"),
        (lambda: Exponential(factor=0.5), 0.5, "factor must be from 1 to 1e+06"),
        (lambda: Exponential(factor=math.inf), math.inf, "factor must be from 1 to 1e+06"),
        (lambda: Exponential(factor=math.nan), math.nan, "factor must be from 1 to 1e+06"),
        (lambda: Exponential(factor="2"), "2", "factor must be a number"),
        (lambda: Exponential(jitter=1.1), 1.1, "jitter must be from 0 to 1"),
        (lambda: Exponential(jitter=True), True, "jitter must be a number"),
        (lambda: Fixed("soon"), "soon", "delay has no number at 'soon'"),
        (lambda: Fixed(1, -1), -1, "retries must not be negative"),
        (lambda: Delays("1s"), "1s", "delays must be a list"),
        (lambda: Delays({1}), {1}, "delays must be a list"),
        (lambda: Delays([], 2), [], "2 retries need at least one delay"),
        (lambda: PerException([ValueError]), [ValueError], "give a dict of exception classes"),
        (lambda: PerException({"x": 1}), "x", "it is no exception class"),
        (lambda: PerException({int: 1}), int, "it is no exception class"),
        (lambda: PerException({ValueError: -1}), -1, "retries must not be negative"),
        (lambda: PerException({}, default=True), True, "retries must be a whole number"),
    ],
)
def test_a_bad_policy_is_refused_at_its_declaration(declare, value, why):
    with pytest.raises(BadPolicy) as caught:
        declare()
    assert caught.value.value == value or caught.value.value is value
    assert str(caught.value).startswith(f"{value!r} is not a retry policy: {why}")
    assert str(caught.value).endswith(
        "; give a number of retries, a list of delays, or one of penstock's policies"
    )


def test_a_bad_delay_has_the_duration_error_as_its_cause():
    with pytest.raises(BadPolicy) as caught:
        Fixed("5x")
    assert isinstance(caught.value.__cause__, BadDuration)


def test_a_coroutine_function_is_refused():
    async def decide(failures, error):
        return 1

    with pytest.raises(BadPolicy, match="it is a coroutine function; give a plain one"):
        make_policy(decide)


def test_a_function_that_raises_is_a_bad_policy():
    def decide(failures, error):
        raise KeyError("oops")

    with pytest.raises(BadPolicy, match="it raised KeyError: 'oops'") as caught:
        make_policy(decide).next(1, ERROR, 0.0)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("answer", ["soon", -1, math.inf, True, False, object()])
def test_a_function_that_returns_nonsense_is_a_bad_policy(answer):
    with pytest.raises(BadPolicy, match="neither a duration nor None"):
        make_policy(lambda failures, error: answer).next(1, ERROR, 0.0)


def test_a_function_gets_the_failure_number_and_the_error():
    seen = []
    make_policy(lambda *given: seen.append(given)).next(4, ERROR, 0.5)
    assert seen == [(4, ERROR)]
