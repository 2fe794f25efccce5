"""``penstock jobs``: list and show jobs; retry, cancel or purge them by their ids or by options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from penstock.app import Penstock
from penstock.cli.filters import HELP, as_options, filtered
from penstock.cli.job_record import COLUMNS, print_page, record, row
from penstock.cli.output import (
    AsJson,
    Column,
    PrintedTable,
    print_json,
    print_json_line,
    print_line,
    print_table,
)
from penstock.cli.program import group
from penstock.cli.prompts import DryRun, Yes, confirm, progress, say
from penstock.cli.store import Url, opened, stored_job
from penstock.core.job import FINAL, State
from penstock.engines.records import Control, Page
from penstock.errors import EngineError, UsageError
from penstock.handle import BY_A_PERSON
from penstock.operations import Told, Which, finding
from penstock.options import word

PAGE_OF_ALL: Final = 500

LIST_EPILOG = f"""\
{HELP}
Newest first. --json prints one document with jobs and the cursor of the next page; with --all, one
line for each job.

Example: penstock jobs list --state failed --since 2h
"""
SHOW_EPILOG = """\
Exit codes: 0 here it is; 1 the store does not know it.

Example: penstock jobs show 5f2c09a1b3d4e5f60718
"""

_ASKS: Final = "It asks before it acts on jobs that options choose, and says how many they are."

RETRY_EPILOG = f"""\
{_ASKS} Without --state, these are failed jobs only. A job
that is sent back has all its retries again.

{HELP}
Exit codes: 0 all of it went as told; 1 an id is unknown or its job could not be sent back, no job
fits, or the answer was no; 2 it was called in a wrong way, or nobody could be asked.

Example: penstock jobs retry --task shop.send --since 2h
"""
CANCEL_EPILOG = f"""\
{_ASKS} Without --state, these are scheduled, ready and running jobs.

{HELP}
Exit codes: 0 all of it went as told; 1 an id is unknown or its job has ended otherwise, no job
fits, or the answer was no; 2 it was called in a wrong way, or nobody could be asked.

Example: penstock jobs cancel --queue mail --state scheduled
"""
PURGE_EPILOG = f"""\
It asks first, and says how many they are. Running jobs stay. An id that a person chose stays in the
ledger, so that it cannot be used again too early.

{HELP}
Exit codes: 0 they are deleted; 1 an id is unknown or its job runs, no job fits, or the answer was
no; 2 it was called in a wrong way, or nobody could be asked.

Example: penstock jobs purge --state succeeded --until 30d
"""

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="The jobs; - reads ids from the input, one a line."),
]
All = Annotated[bool, typer.Option("--all", help="All jobs, if nothing else chooses.")]

app = group("jobs", "See jobs, send them back to run, cancel or delete them.")


@app.command("list", epilog=LIST_EPILOG)
@filtered
def list_jobs(
    which: Which,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs on a page.")] = 50,
    cursor: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Go on where a page ended: it said with which."),
    ] = None,
    all_pages: Annotated[bool, typer.Option("--all", help="All pages, as they come.")] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List the jobs that fit, newest first."""
    table = PrintedTable(COLUMNS)
    with opened(url) as store:
        now = store.now()
        while True:
            size = PAGE_OF_ALL if all_pages else limit
            page = store._facade.call(finding(which, size, cursor), what="find")
            if not as_json:
                table.print(row(job, now) for job in page.jobs)
            elif all_pages:
                for job in page.jobs:
                    print_json_line(record(job))
            else:
                print_json({"jobs": [record(job) for job in page.jobs], "cursor": page.cursor})
            cursor = page.cursor
            if not all_pages or cursor is None:
                break
    if not as_json:
        _say_more(page, which, limit, url, all_pages)


def _say_more(page: Page, which: Which, limit: int, url: str | None, all_pages: bool) -> None:
    if not page.jobs:
        say("No job fits." if which else "There are no jobs.")
    if page.cursor is not None and not all_pages:
        place = f"--url {shlex.quote(url)}" if url else ""
        options = (as_options(which), f"--limit {limit}", f"--cursor {page.cursor}", place)
        say(f"More: penstock jobs list {' '.join(filter(None, options))}")


@app.command("show", epilog=SHOW_EPILOG)
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The job.")],
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Show everything about one job."""
    with opened(url) as store:
        job = stored_job(store, word("id", id))
        if as_json:
            print_json(record(job))
        else:
            why = None if job.state.is_final else store.explain(id).verdict
            print_page(job, store.now(), why)


@app.command("retry", epilog=RETRY_EPILOG)
@filtered
def retry(
    which: Which,
    ids: Ids = None,
    all_jobs: All = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Send failed or cancelled jobs back to run again."""
    named = _chosen(ids, which, all_jobs)
    with opened(url) as store:
        if named:
            can = {State.FAILED, State.CANCELLED}
            with _progress("Retrying", len(named)) as told:
                answers = (
                    _dry_run(store, named, can) if dry_run else store.retry_many(named, told=told)
                )
            _print_each(answers, "retried", (), dry_run, as_json)
            return
        which.setdefault("state", [State.FAILED])
        count = _confirmed(store, which, "Retry", "retried", yes, dry_run, as_json)
        with _progress("Retrying", count) as told:
            changed = store.retry_all(told=told, **which)
    _print_count(changed, "retried", as_json)


@app.command("cancel", epilog=CANCEL_EPILOG)
@filtered
def cancel(
    which: Which,
    ids: Ids = None,
    all_jobs: All = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, for the next person.")
    ] = BY_A_PERSON,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Cancel waiting jobs, and ask running ones to end."""
    named = _chosen(ids, which, all_jobs)
    with opened(url) as store:
        if named:
            can = set(State) - FINAL
            with _progress("Cancelling", len(named)) as told:
                answers = (
                    _dry_run(store, named, can)
                    if dry_run
                    else store.cancel_many(named, reason, told=told)
                )
            _print_each(answers, "cancelled", (State.CANCELLED, State.RUNNING), dry_run, as_json)
            return
        which.setdefault("state", [State.SCHEDULED, State.READY, State.RUNNING])
        count = _confirmed(store, which, "Cancel", "cancelled", yes, dry_run, as_json)
        with _progress("Cancelling", count) as told:
            changed = store.cancel_all(reason, told=told, **which)
    _print_count(changed, "cancelled", as_json)


@app.command("purge", epilog=PURGE_EPILOG)
@filtered
def purge(
    which: Which,
    ids: Ids = None,
    all_jobs: All = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Delete jobs that do not run, with their results."""
    named = _chosen(ids, which, all_jobs)
    if named:
        which["id"] = named
    wanted = which.get("state") or list(State)
    which["state"] = [state for state in wanted if state != State.RUNNING]
    if not which["state"]:
        raise UsageError("running jobs are not deleted; cancel them first: penstock jobs cancel")
    with opened(url) as store:
        count = _confirmed(store, which, "Delete", "deleted", yes, dry_run, as_json)
        with _progress("Deleting", count) as told:
            purged = store.purge(told=told, **which)
    _print_count(purged, "deleted", as_json)
    if purged < len(named):
        say(f"Not deleted: {len(named) - purged} of those named, which run or are not there.")
        raise typer.Exit(1)


# --- choosing ----------------------------------------------------------------------------------


def _chosen(ids: Sequence[str] | None, which: Which, all_jobs: bool) -> list[str]:
    """The ids that are given, each once; none if options choose the jobs."""
    named = [each for id in ids or () for each in (_read_ids() if id == "-" else [id])]
    if named and (which or all_jobs):
        raise UsageError("ids are named and options choose as well; give one or the other")
    if which and all_jobs:
        raise UsageError("options choose and --all is given as well; give one or the other")
    if ids and not named:
        raise UsageError("the input has no ids; write one a line")
    if not (named or which or all_jobs):
        raise UsageError("no job is named or chosen; give ids, options such as --queue, or --all")
    return list(dict.fromkeys(named))


def _read_ids() -> list[str]:
    return [line.strip() for line in sys.stdin if line.strip()]


def _confirmed(
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
            print_line(f"{_jobs(count)} would be {done}.")
        else:
            say("No job fits.")
        raise typer.Exit(0 if count else 1)
    if not confirm(f"{verb} {_jobs(count)}?", yes=yes):
        raise typer.Exit(1)
    return count


@contextmanager
def _progress(title: str, total: int) -> Iterator[Told]:
    """Show a bar; if the block ends early, say how far it came."""
    met = 0

    def count(more: int) -> None:
        nonlocal met
        met += more
        told(more)

    def progress_so_far() -> str:
        return (
            f"It went through {met:,} of {_jobs(total)}, perhaps a step further; repeat to go on."
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


def _dry_run(store: Penstock, ids: Sequence[str], can: set[State]) -> list[Control]:
    """What would become of each id, as far as its state decides."""
    states: dict[str, State] = {}
    for start in range(0, len(ids), 500):
        some = list(ids[start : start + 500])
        states |= {job.id: job.state for job in store.find(limit=len(some), id=some).jobs}
    return [Control(id, states.get(id) in can, states.get(id)) for id in ids]


# --- printing ----------------------------------------------------------------------------------


def _print_count(changed: int, verb: str, as_json: bool) -> None:
    if as_json:
        print_json({"changed": changed})
    else:
        print_line(f"{_jobs(changed)} {verb}.")


def _print_each(
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


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"
