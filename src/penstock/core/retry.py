"""Retry policies: when a failed job is tried again, as data, decided by a pure function.

    @app.task()                                                10 retries, over about a day
    @app.task(retries=5)                                       5 of these, exponential with jitter
    @app.task(retries=0)                                       none; so do None and False
    @app.task(retries=[1, "5s", "1m"])                         one retry per delay
    @app.task(retries=Fixed("30s", retries=10))
    @app.task(retries=Exponential(10, base="2s", cap="1h"))
    @app.task(retries=PerException({ConnectionError: 10, ValueError: None}))
    @app.task(retries=lambda failures, error: "1m" if failures < 3 else None)

``policy.next(failures, error, chance)`` answers how many seconds to wait after that many failures
(the first failure is 1), or None when it is over. ``chance`` is a random number in [0, 1) that
the caller draws: the same three always give the same answer. A crash is no failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, Final

from penstock.core.units import Duration, seconds
from penstock.errors import BadDuration, BadPolicy

Decision = Callable[[int, Any], Duration | None]
"""``(failures, error) -> duration``, or None to give up; the error may be declared narrower."""

RETRIES: Final = 10
"""How many retries a policy has that does not say."""
UNLIMITED: Final = sys.maxsize
"""As many retries as there is time for."""


@dataclass(frozen=True, slots=True)
class Never:
    """The first failure is the last."""

    def next(self, failures: int, error: BaseException, chance: float) -> float | None:
        return None


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Each wait is ``factor`` times the one before, up to ``cap``.

    By default 2 s, 10 s, 50 s, 4 min, 21 min, 1.7 h, then 6 h each: soon for what passes at once,
    and 10 retries outlast an outage of most of a day (26 h at most, 20 h on average). ``jitter`` is
    the share of each wait that is left to chance, so that jobs that failed together do not come
    back together: with the default of one half, the first wait is anything from 1 s to 2 s. It
    never waits longer than ``cap``.
    """

    retries: int
    base: float
    factor: float
    cap: float
    jitter: float

    def __init__(
        self,
        retries: int = RETRIES,
        *,
        base: Duration = 2.0,
        factor: float = 5.0,
        cap: Duration = 21600.0,
        jitter: float = 0.5,
    ) -> None:
        _set(
            self,
            retries=_count(retries),
            base=_delay(base, "base"),
            factor=_ratio(factor, "factor", 1.0, 1e6),
            cap=_delay(cap, "cap"),
            jitter=_ratio(jitter, "jitter", 0.0, 1.0),
        )
        if self.cap < self.base:
            raise BadPolicy(cap, f"cap is below base ({base!r})")

    def next(self, failures: int, error: BaseException, chance: float) -> float | None:
        if failures > self.retries:
            return None
        try:
            wait = min(self.cap, self.base * self.factor ** (failures - 1))
        except OverflowError:
            wait = self.cap if self.base else 0.0
        return wait * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """The same wait every time; ``jitter`` is the share of it that is left to chance."""

    delay: float
    retries: int
    jitter: float

    def __init__(self, delay: Duration, retries: int = RETRIES, *, jitter: float = 0.0) -> None:
        _set(
            self,
            delay=_delay(delay, "delay"),
            retries=_count(retries),
            jitter=_ratio(jitter, "jitter", 0.0, 1.0),
        )

    def next(self, failures: int, error: BaseException, chance: float) -> float | None:
        if failures > self.retries:
            return None
        return self.delay * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, init=False)
class Delays:
    """One retry per delay; with more ``retries`` than delays, the last one repeats."""

    delays: tuple[float, ...]
    retries: int
    jitter: float

    def __init__(
        self, delays: Sequence[Duration], retries: int | None = None, *, jitter: float = 0.0
    ) -> None:
        if isinstance(delays, str) or not isinstance(delays, Sequence):
            raise BadPolicy(delays, "delays must be a list")
        waits = tuple(_delay(each, "each delay") for each in delays)
        count = len(waits) if retries is None else _count(retries)
        if count and not waits:
            raise BadPolicy(delays, f"{count} retries need at least one delay")
        _set(self, delays=waits, retries=count, jitter=_ratio(jitter, "jitter", 0.0, 1.0))

    def next(self, failures: int, error: BaseException, chance: float) -> float | None:
        if failures > self.retries:
            return None
        wait = self.delays[min(failures, len(self.delays)) - 1]
        return wait * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, init=False)
class Custom:
    """Whatever a function says: ``(failures, error) -> duration``, or None to give up."""

    function: Decision

    def __init__(self, function: Decision) -> None:
        if isinstance(function, type):
            raise BadPolicy(function, "it is a class; give an instance")
        if iscoroutinefunction(function):
            raise BadPolicy(function, "it is a coroutine function; give a plain one")
        _set(self, function=function)

    def next(self, failures: int, error: BaseException, chance: float) -> float | None:
        try:
            answer = self.function(failures, error)
        except Exception as trouble:
            why = f"it raised {type(trouble).__name__}: {trouble}"
            raise BadPolicy(self.function, why) from trouble
        if answer is None:
            return None
        try:
            return seconds(answer)
        except BadDuration as trouble:
            why = f"it returned {answer!r}, neither a duration nor None"
            raise BadPolicy(self.function, why) from trouble


@dataclass(frozen=True, slots=True, init=False)
class PerException:
    """A policy per kind of error: the nearest class in the error's ancestry decides.

    Values are anything ``retries=`` takes; None means that such an error is final. Every policy
    sees the job's failures of all kinds. What is not listed follows ``default``.
    """

    policies: Mapping[type[BaseException], Policy]
    default: Policy

    def __init__(self, policies: Mapping[type[Any], Retries], default: Retries = RETRIES) -> None:
        if not isinstance(policies, Mapping):
            raise BadPolicy(policies, "give a dict of exception classes")
        for kind in policies:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise BadPolicy(kind, "it is no exception class")
        made = {kind: make_policy(value) for kind, value in policies.items()}
        _set(self, policies=MappingProxyType(made), default=make_policy(default))

    def next(self, failures: int, error: BaseException, chance: float) -> float | None:
        for kind in type(error).__mro__:
            policy = self.policies.get(kind)
            if policy is not None:
                return policy.next(failures, error, chance)
        return self.default.next(failures, error, chance)


Policy = Never | Exponential | Fixed | Delays | PerException | Custom
"""A checked policy; all of them answer ``next(failures, error, chance)``."""

Retries = int | Policy | Sequence[Duration] | Decision | None
"""What ``retries=`` takes."""


def make_policy(retries: Retries = RETRIES) -> Policy:
    """The policy that ``retries=`` stands for; BadPolicy when it stands for none."""
    if retries is None or retries is False:
        return Never()
    if isinstance(retries, Policy):
        return retries
    if isinstance(retries, int):
        return Exponential(retries) if _count(retries) else Never()
    if isinstance(retries, (list, tuple)):
        return Delays(retries)
    if callable(retries):
        return Custom(retries)
    raise BadPolicy(retries, f"it is of type {type(retries).__name__}")


def _set(policy: object, **facts: Any) -> None:
    """Fill a frozen policy, once, from its own constructor."""
    for name, fact in facts.items():
        object.__setattr__(policy, name, fact)


def _count(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadPolicy(value, "retries must be a whole number")
    if value < 0:
        raise BadPolicy(value, "retries must not be negative")
    return value


def _delay(value: Duration, name: str) -> float:
    try:
        return seconds(value, name=name)
    except BadDuration as error:
        raise BadPolicy(value, error.why) from error


def _ratio(value: float, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadPolicy(value, f"{name} must be a number")
    # The comparison is false for NaN too, and exact for an int that no float can hold.
    if not least <= value <= most:
        raise BadPolicy(value, f"{name} must be from {least:g} to {most:g}")
    return float(value)
