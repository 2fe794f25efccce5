"""What no engine takes, whichever it is: numbers that are no instants, text that is cut short.

A time that is not finite would never come, and a store that cannot hold it would lose the job
instead. NUL ends a text early in some stores: one job could be taken for another.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Final

import msgspec

from penstock.core.job import LONGEST_KEEP, Draft, Job, Outcome
from penstock.engines.records import Report, Rewrite
from penstock.errors import ItemRefused

INTEGERS: Final = range(-(1 << 63), 1 << 63)

LONGEST_NAME: Final = 1000
"""Bytes of a queue's name or of a key: a store has both in one entry of an index."""


def check_drafts(name: str, drafts: Iterable[Draft]) -> None:
    """Raise ``ItemRefused`` if one of the drafts cannot be a job on any engine."""
    for draft in drafts:
        run_at = 0.0 if draft.run_at is None else draft.run_at
        expires_in = 0.0 if draft.expires_in is None else draft.expires_in
        # A sum is finite only if all of it is; huge values that are finite may still overflow it.
        if not isfinite(
            draft.delay
            + run_at
            + expires_in
            + draft.remember
            + draft.unique_for
            + draft.keep
            + draft.keep_failed
        ):
            raise ItemRefused(name, f"job {draft.id!r} has a time that is not a finite number")
        for keep in (draft.keep, draft.keep_failed):
            if not 0.0 <= keep <= LONGEST_KEEP:
                most = f"{LONGEST_KEEP:.0f}"
                why = f"job {draft.id!r} would be kept for {keep} seconds, not 0 to {most}"
                raise ItemRefused(name, why)
        if draft.priority not in INTEGERS:
            raise ItemRefused(name, f"priority {draft.priority} has more than 64 bits")
        if "\0" in _text(draft):
            raise ItemRefused(name, f"job {draft.id!r} has a text with a NUL character")
        _check_names(name, draft)


def _check_names(name: str, job: Draft | Job) -> None:
    for kind, text in (("queue", job.queue), ("key", job.key or "")):
        if is_long(text):
            why = f"job {job.id!r} has a {kind} of more than {LONGEST_NAME} bytes: {text[:20]!r}..."
            raise ItemRefused(name, why)


def is_long(text: str) -> bool:
    """The text is too long for a queue's name or a key."""
    # A character has four bytes at most. What is no Unicode is refused elsewhere.
    return len(text) > LONGEST_NAME // 4 and len(text.encode(errors="replace")) > LONGEST_NAME


def check_outcomes(name: str, outcomes: Iterable[Outcome]) -> None:
    """Raise ``ItemRefused`` if one of the outcomes cannot be settled on any engine."""
    for outcome in outcomes:
        if not isfinite(outcome.delay):
            why = f"job {outcome.job!r} would wait for {outcome.delay} seconds"
            raise ItemRefused(name, why)
        if outcome.then:
            check_drafts(name, outcome.then)


def check_rewrites(name: str, rewrites: Iterable[Rewrite]) -> None:
    """Raise ``ItemRefused`` if one of the rewrites cannot be written on any engine."""
    for rewrite in rewrites:
        check_given(name, rewrite.job)
        _check_names(name, rewrite.job)
        check_drafts(name, rewrite.then)


def check_reports(name: str, reports: Iterable[Report]) -> None:
    """Raise ``ItemRefused`` if one of the reports says something that is no share of the work."""
    for report in reports:
        if report.fraction is not None and not isfinite(report.fraction):
            raise ItemRefused(name, f"job {report.job!r} has come {report.fraction} far")
        check_given(name, report.note)


def check_given(name: str, given: object) -> None:
    """Raise ``ItemRefused`` for what no store could take: text that is no Unicode, huge numbers."""
    try:
        msgspec.msgpack.encode(given)
    except (UnicodeEncodeError, OverflowError) as error:
        raise ItemRefused(name, str(error)) from error


def _text(draft: Draft) -> str:
    """All the texts of a draft as one, which is quicker to search."""
    always = f"{draft.id}{draft.task}{draft.queue}{draft.enqueued_by}{draft.key}{draft.unique}"
    return f"{always}{draft.name}{draft.correlation_id}{''.join(draft.tags)}"
