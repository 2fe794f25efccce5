"""What no engine takes, whichever it is: numbers that are no instants, text that is cut short.

A time that is not finite would never come, and a store that cannot hold it would lose the job
instead. NUL ends a text early in some stores: one job could be taken for another.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Final

import msgspec

from penstock.core.job import Draft, Outcome
from penstock.engines.records import Report, Rewrite
from penstock.errors import ItemRefused

INTEGERS: Final = range(-(1 << 63), 1 << 63)
LONGEST: Final = 1e10
"""Seconds for which a job can be kept, 300 years: a store may have a table for the day on which it
goes, and not every day has a name."""


def check_drafts(name: str, drafts: Iterable[Draft]) -> None:
    """Raise ``ItemRefused`` if one of the drafts cannot be a job on any engine."""
    for draft in drafts:
        run_at = 0.0 if draft.run_at is None else draft.run_at
        expires_in = 0.0 if draft.expires_in is None else draft.expires_in
        # A sum is finite only if all of it is; huge values that are finite may still overflow it.
        if not isfinite(
            draft.delay + run_at + expires_in + draft.remember + draft.unique_for + draft.keep
        ):
            raise ItemRefused(name, f"job {draft.id!r} has a time that is not a finite number")
        if not 0.0 <= draft.keep <= LONGEST:
            why = f"job {draft.id!r} would be kept for {draft.keep} seconds, not 0 to {LONGEST:.0f}"
            raise ItemRefused(name, why)
        if draft.priority not in INTEGERS:
            raise ItemRefused(name, f"priority {draft.priority} has more than 64 bits")
        if "\0" in _text(draft):
            raise ItemRefused(name, f"job {draft.id!r} has a text with a NUL character")


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
