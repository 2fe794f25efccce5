"""Which process is hit in which way at which moment of a run: a pure function of its seed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

Kind = Literal["sqlite", "postgres"]
Act = Literal["kill", "stop", "restart"]
Victim = Literal["supervisor", "worker", "child", "producer", "server"]

ANYWHERE: list[tuple[Act, Victim]] = [
    *(("kill", "supervisor"), ("kill", "worker"), ("kill", "worker"), ("kill", "child")),
    *(("kill", "child"), ("kill", "producer")),
    *(("stop", "supervisor"), ("stop", "worker"), ("stop", "child"), ("stop", "producer")),
    *(("restart", "supervisor"), ("restart", "worker"), ("restart", "producer")),
]
SERVER: list[tuple[Act, Victim]] = [
    ("kill", "server"),
    ("stop", "server"),
    ("restart", "server"),
]


class Blow(NamedTuple):
    """What is done to one process, and when."""

    at: float
    """Seconds from the beginning of the run."""
    act: Act
    victim: Victim
    pick: float
    """Which one of several: 0 is the first, just under 1 the last."""
    length: float
    """Seconds that a stop lasts."""


def plan(kind: Kind, seed: int, seconds: float, lease: float, pause: float = 0.6) -> list[Blow]:
    """The blows of a run, in order; every kind comes once before any comes twice.

    Some stops are shorter than the lease and some longer.
    """
    dice = Random(seed)
    blows, at = [], 0.0
    for act, victim in _shuffled(kind, dice):
        at += dice.uniform(0.0, 2 * pause)
        if at > seconds:
            break
        length = dice.choice([0.5, 1.5, 2.5]) * lease
        blows.append(Blow(at, act, victim, dice.random(), length))
    return blows


def _shuffled(kind: Kind, dice: Random) -> Iterator[tuple[Act, Victim]]:
    while True:
        deck = ANYWHERE + (SERVER if kind == "postgres" else [])
        dice.shuffle(deck)
        yield from deck
