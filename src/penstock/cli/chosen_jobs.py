"""The jobs that a command changes: named by their ids or selected by filters, counted and confirmed
first, and what became of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import typer

from penstock.app import Penstock
from penstock.cli.output import Column, print_json, print_line, print_table
from penstock.cli.prompts import confirm, progress, say
from penstock.core.job import State
from penstock.engines.records import Control
from penstock.errors import EngineError, UsageError
from penstock.operations import Told, Which


def named_ids(ids: Sequence[str] | None) -> list[str]:
    """The ids that are given, each once; ``-`` stands for those in the input."""
    return list(
        dict.fromkeys(each for id in ids or () for each in (_read_ids() if id == "-" else [id]))
    )


def chosen(ids: Sequence[str] | None, which: Which, all_jobs: bool) -> list[str]:
    """The ids that are given, each once; none if filters select the jobs."""
    named = named_ids(ids)
    if named and (which or all_jobs):
        raise UsageError("both ids and filters are given; give one or the other")
    if which and all_jobs:
        raise UsageError("both filters and --all are given; give one or the other")
    if ids and not named:
        raise UsageError("the input has no ids; give one id per line")
    if not (named or which or all_jobs):
        raise UsageError("no jobs are selected; give ids, a filter such as --queue, or --all")
    return named


def _read_ids() -> list[str]:
    return [line.strip() for line in sys.stdin if line.strip()]


def confirmed(
    store: Penstock,
    which: Which,
    verb: str,
    done: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """How many jobs to change. Exits if there are none, on a dry run, or if the answer is no."""
    count = store.count(**which)
    if dry_run or not count:
        if as_json:
            print_json({"fit": count, "changed": 0})
        elif count:
            print_line(f"{jobs_text(count)} would be {done}.")
        else:
            say("No jobs match.")
        raise typer.Exit(0 if count else 1)
    if not confirm(f"{verb} {jobs_text(count)}?", yes=yes):
        raise typer.Exit(1)
    return count


@contextmanager
def counted(title: str, total: int) -> Iterator[Told]:
    """Show a progress bar; if the block ends early, say how far it got."""
    met = 0

    def count(more: int) -> None:
        nonlocal met
        met += more
        told(more)

    def progress_so_far() -> str:
        return (
            f"Stopped after {met:,} of {jobs_text(total)}, perhaps a few more; "
            "run the command again to continue."
        )

    try:
        with progress(title, total) as told:
            yield count
    except KeyboardInterrupt:
        say(progress_so_far())
        raise
    except EngineError as error:
        error.add_note(progress_so_far())
        raise


def rehearsed(store: Penstock, ids: Sequence[str], can: Set[State]) -> list[Control]:
    """What would become of each id, as far as its state decides."""
    states: dict[str, State] = {}
    for start in range(0, len(ids), 500):
        some = list(ids[start : start + 500])
        states |= {job.id: job.state for job in store.find(limit=len(some), id=some).jobs}
    return [Control(id, states.get(id) in can, states.get(id)) for id in ids]


# --- printing ----------------------------------------------------------------------------------


def print_count(changed: int, verb: str, as_json: bool) -> None:
    """Print how many jobs were changed."""
    if as_json:
        print_json({"changed": changed})
    else:
        print_line(f"{jobs_text(changed)} {verb}.")


def print_each(
    answers: Sequence[Control], verb: str, wanted: Sequence[State], dry_run: bool, as_json: bool
) -> None:
    """Print what became of each id; exit 1 unless all are in the wanted state, now or before."""
    if as_json:
        print_json({"jobs": [_record(each) for each in answers]})
    else:
        columns = (Column("ID"), Column("OUTCOME", shrink=True))
        print_table(columns, [(each.id, _outcome(each, verb, dry_run)) for each in answers])
    if not all(each.changed or each.state in wanted for each in answers):
        raise typer.Exit(1)


def _record(answer: Control) -> dict[str, Any]:
    return {
        "id": answer.id,
        "changed": answer.changed,
        "state": answer.state,
        "owner": answer.owner,
    }


def _outcome(answer: Control, verb: str, dry_run: bool) -> str:
    if answer.state is None:
        return "not in the store"
    if answer.owner is not None:
        return f"not {verb}: job {answer.owner} has its unique key"
    if not answer.changed:
        return f"not {verb}: it is {answer.state}"
    done = "asked to end" if answer.state is State.RUNNING else verb
    return f"would be {done}" if dry_run else done


def jobs_text(count: int) -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{count:,} job{'' if count == 1 else 's'}"
