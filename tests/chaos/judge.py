"""Whether a run kept its promises: a pure function of what was recorded.

Nothing lost: what was acknowledged is stored, and everything stored has ended. Nothing settled
twice: of each job one claim's end counts, no claim ran twice, and what a transactional task
wrote is there exactly once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

FINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Events after which a job has no further claim."""


class Stored(NamedTuple):
    """A job as the store has it in the end."""

    id: str
    state: str
    claim: int
    crashes: int = 0
    is_transactional: bool = False


class Settlement(NamedTuple):
    """An end of an claim that the store accepted; claim 0: the job was not running."""

    id: str
    claim: int
    worker: str
    event: str


class Fault(NamedTuple):
    """A broken promise."""

    id: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that is known of a run when it is over."""

    acknowledged: Sequence[str] = ()
    """Ids that an enqueue returned."""
    cancelled: AbstractSet[str] = frozenset()
    """Ids whose cancellation was asked for."""
    begun: Sequence[tuple[str, int]] = ()
    """Attempts whose handler was called."""
    settled: Sequence[Settlement] = ()
    """As the events told it; a process that was killed may not have told of its last ones."""
    stored: Sequence[Stored] = ()
    effects: Sequence[str] = ()
    """The id of the job, once per committed effect of a transactional task."""
    troubles: Sequence[str] = ()
    """What went wrong with the processes themselves."""


def judge(record: Record) -> list[Fault]:
    """Every promise that the run broke, with the job it was broken to."""
    return [
        *(Fault("-", trouble) for trouble in record.troubles),
        *_lost(record),
        *_ended_badly(record),
        *_ran_wrongly(record),
        *_settled_twice(record),
        *_effects(record),
    ]


def _lost(record: Record) -> Iterator[Fault]:
    known = Counter(job.id for job in record.stored)
    for id in sorted(set(record.acknowledged) - set(known)):
        yield Fault(id, "was acknowledged and is not stored")
    for id, count in known.items():
        if count > 1:
            yield Fault(id, f"is stored {count} times")


def _ended_badly(record: Record) -> Iterator[Fault]:
    for job in record.stored:
        match job.state:
            case "succeeded":
                pass
            case "cancelled":
                if job.id not in record.cancelled:
                    yield Fault(job.id, "was cancelled, which was not asked for")
            case "failed":
                if not job.crashes:
                    yield Fault(job.id, "has failed without a crash")
            case _:
                yield Fault(job.id, f"has not ended: it is {job.state}")


def _ran_wrongly(record: Record) -> Iterator[Fault]:
    ran = Counter(record.begun)
    last = {job.id: job.claim for job in record.stored}
    for (id, claim), count in ran.items():
        if count > 1:
            yield Fault(id, f"claim {claim} ran {count} times")
        if claim > last.get(id, claim):
            yield Fault(id, f"claim {claim} ran, but the store knows of {last[id]}")
    for job in record.stored:
        if job.state == "succeeded" and (job.id, job.claim) not in ran:
            yield Fault(job.id, f"succeeded in claim {job.claim}, which never ran")


def _settled_twice(record: Record) -> Iterator[Fault]:
    # A settlement whose reply was lost is repeated by its worker and told twice: it is the same.
    ends: dict[str, set[Settlement]] = defaultdict(set)
    attempts: dict[tuple[str, int], set[Settlement]] = defaultdict(set)
    for settlement in record.settled:
        if settlement.event in FINAL:
            ends[settlement.id].add(settlement)
        if settlement.claim:
            attempts[settlement.id, settlement.claim].add(settlement)
    for job in record.stored:
        told = sorted(ends[job.id])
        if len(told) > 1:
            yield Fault(job.id, f"was settled twice: {_words(told)}")
        elif told and (told[0].event.lower(), told[0].claim or job.claim) != (
            job.state,
            job.claim,
        ):
            yield Fault(job.id, f"is {job.state}, claim {job.claim}, after {_words(told)}")
    for (id, claim), several in attempts.items():
        if len(several) > 1 and len(ends[id]) <= 1:
            yield Fault(id, f"claim {claim} ended twice: {_words(sorted(several))}")


def _words(settlements: Sequence[Settlement]) -> str:
    return ", then ".join(
        f"{each.event} (claim {each.claim}, {each.worker})" for each in settlements
    )


def _effects(record: Record) -> Iterator[Fault]:
    written = Counter(record.effects)
    for job in record.stored:
        expected = int(job.is_transactional and job.state == "succeeded")
        if written[job.id] != expected:
            yield Fault(job.id, f"{job.state} with {written[job.id]} effects, not {expected}")
