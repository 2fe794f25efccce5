"""``penstock jobs``: list and show jobs; retry, cancel, purge, edit or hurry them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli import completion
from penstock.cli.calls import priority_of, time_of
from penstock.cli.chosen_jobs import (
    chosen,
    confirmed,
    counted,
    named_ids,
    print_count,
    print_each,
    rehearsed,
)
from penstock.cli.filters import HELP, as_options, filtered
from penstock.cli.job_record import COLUMNS, print_page, record, row
from penstock.cli.output import AsJson, PrintedTable, print_json, print_json_line
from penstock.cli.program import group
from penstock.cli.prompts import DryRun, Yes, say
from penstock.cli.store import AppName, Url, opened, options, stored_job
from penstock.core.job import FINAL, WAITING, State
from penstock.engines.records import Page
from penstock.errors import UsageError
from penstock.handle import BY_A_PERSON
from penstock.job_edits import JobEdits
from penstock.operations import Which, finding
from penstock.options import word

PAGE_OF_ALL: Final = 500

LIST_EPILOG = f"""\
{HELP}
The newest jobs come first. --json prints one document with the jobs and the cursor of the next
page; with --all, one line per job.

Example: penstock jobs list --state failed --since 2h
"""
SHOW_EPILOG = """\
Exit codes: 0 the job was found; 1 it is not in the store.

Example: penstock jobs show 5f2c09a1b3d4e5f60718
"""

_ASKS: Final = (
    "If filters select the jobs, it says how many there are and asks before changing them."
)
_CODES: Final = """\
2 wrong usage, or confirmation is needed and the input is not a terminal."""

RETRY_EPILOG = f"""\
{_ASKS} Without --state, filters select failed jobs only. A
retried job gets all of its retries again.

{HELP}
Exit codes: 0 success; 1 an id is unknown or its job cannot be retried, no jobs match, or you
answered no; {_CODES}

Example: penstock jobs retry --task shop.send --since 2h
"""
CANCEL_EPILOG = f"""\
{_ASKS} Without --state, filters select scheduled, ready and
running jobs.

{HELP}
Exit codes: 0 success; 1 an id is unknown or its job has already ended otherwise, no jobs match, or
you answered no; {_CODES}

Example: penstock jobs cancel --queue mail --state scheduled
"""
PURGE_EPILOG = f"""\
It says how many jobs there are and asks before deleting them. Running jobs are kept. An id that a
caller chose stays in the ledger, so that it cannot be reused too early.

{HELP}
Exit codes: 0 the jobs are deleted; 1 an id is unknown or its job is running, no jobs match, or you
answered no; {_CODES}

Example: penstock jobs purge --state succeeded --until 30d
"""
EDIT_EPILOG = """\
Only waiting jobs (scheduled or ready) can be edited. An edited job goes to the end of its line. A
TIME is a date and time, in UTC unless it has a time zone; one that has passed makes the job ready.

Exit codes: 0 all jobs were edited; 1 an id is unknown or its job is not waiting; 2 wrong usage.

Example: penstock jobs edit 5f2c09a1b3d4e5f60718 --queue urgent --priority high
"""
RUN_NOW_EPILOG = f"""\
For jobs that are scheduled for later, such as delayed jobs and retries. They become ready and run
as soon as a worker has a free slot. A paused queue or a limit still holds them back.

{_ASKS}

{HELP}
Exit codes: 0 success; 1 an id is unknown or its job is not scheduled, no jobs match, or you
answered no; {_CODES}

Example: penstock jobs run-now 5f2c09a1b3d4e5f60718
"""

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Job ids; - reads them from the input, one per line."),
]
All = Annotated[bool, typer.Option("--all", help="All jobs, unless filtered.")]

app = group("jobs", "List, retry, cancel, edit and delete jobs.")


@app.command("list", epilog=LIST_EPILOG)
@filtered
def list_jobs(
    which: Which,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs per page.")] = 50,
    cursor: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR",
            help="Continue after a previous page, which printed this. [default: the first page]",
        ),
    ] = None,
    all_pages: Annotated[bool, typer.Option("--all", help="Print all pages.")] = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """List jobs, newest first."""
    table = PrintedTable(COLUMNS)
    with opened(name, url) as store:
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
        _say_more(page, which, limit, options(name, url), all_pages)


def _say_more(page: Page, which: Which, limit: int, place: str, all_pages: bool) -> None:
    if not page.jobs:
        say("No jobs match." if which else "There are no jobs.")
    if page.cursor is not None and not all_pages:
        words = (as_options(which), f"--limit {limit}", f"--cursor {page.cursor}", place)
        say(f"Next page: penstock jobs list {' '.join(filter(None, words))}")


@app.command("show", epilog=SHOW_EPILOG)
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.")],
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Show everything about one job."""
    with opened(name, url) as store:
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
    name: AppName = None,
    url: Url = None,
) -> None:
    """Run failed or cancelled jobs again."""
    named = chosen(ids, which, all_jobs)
    with opened(name, url) as store:
        if named:
            can = {State.FAILED, State.CANCELLED}
            with counted("Retrying", len(named)) as told:
                answers = (
                    rehearsed(store, named, can) if dry_run else store.retry_many(named, told=told)
                )
            print_each(answers, "retried", (), dry_run, as_json)
            return
        which.setdefault("state", [State.FAILED])
        count = confirmed(store, which, "Retry", "retried", yes, dry_run, as_json)
        with counted("Retrying", count) as told:
            changed = store.retry_all(told=told, **which)
    print_count(changed, "retried", as_json)


@app.command("cancel", epilog=CANCEL_EPILOG)
@filtered
def cancel(
    which: Which,
    ids: Ids = None,
    all_jobs: All = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, for the people who see the jobs later.")
    ] = BY_A_PERSON,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Cancel waiting jobs, and ask running jobs to stop."""
    named = chosen(ids, which, all_jobs)
    with opened(name, url) as store:
        if named:
            can = set(State) - FINAL
            with counted("Cancelling", len(named)) as told:
                answers = (
                    rehearsed(store, named, can)
                    if dry_run
                    else store.cancel_many(named, reason, told=told)
                )
            print_each(answers, "cancelled", (State.CANCELLED, State.RUNNING), dry_run, as_json)
            return
        which.setdefault("state", [State.SCHEDULED, State.READY, State.RUNNING])
        count = confirmed(store, which, "Cancel", "cancelled", yes, dry_run, as_json)
        with counted("Cancelling", count) as told:
            changed = store.cancel_all(reason, told=told, **which)
    print_count(changed, "cancelled", as_json)


@app.command("purge", epilog=PURGE_EPILOG)
@filtered
def purge(
    which: Which,
    ids: Ids = None,
    all_jobs: All = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Delete jobs that are not running, with their results."""
    named = chosen(ids, which, all_jobs)
    if named:
        which["id"] = named
    wanted = which.get("state") or list(State)
    which["state"] = [state for state in wanted if state != State.RUNNING]
    if not which["state"]:
        raise UsageError("running jobs cannot be deleted; cancel them first: penstock jobs cancel")
    with opened(name, url) as store:
        count = confirmed(store, which, "Delete", "deleted", yes, dry_run, as_json)
        with counted("Deleting", count) as told:
            purged = store.purge(told=told, **which)
    print_count(purged, "deleted", as_json)
    if purged < len(named):
        say(f"Not deleted: {len(named) - purged} of these ids, running or not in the store.")
        raise typer.Exit(1)


@app.command("edit", epilog=EDIT_EPILOG)
def edit(
    ids: Ids = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE", help="Move it to this queue.", autocompletion=completion.queues
        ),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            metavar="PRIORITY", help="high, normal, low, a label of your app, or a number."
        ),
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run it then: 2026-11-16T03:20+00:00.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Run it that long from now: 90s, 2h.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Change the queue, the priority or the time of waiting jobs. What is not given stays."""
    named = named_ids(ids)
    if not named:
        raise UsageError("no jobs are selected; give their ids, or - to read them from the input")
    given = {"queue": queue, "priority": priority, "run_at": run_at, "delay": delay}
    if all(value is None for value in given.values()):
        raise UsageError("no change is given; add --queue, --priority, --run-at or --delay")
    edits: JobEdits = {
        "queue": queue,
        "priority": None if priority is None else priority_of(priority),
        "run_at": None if run_at is None else time_of(run_at),
        "delay": delay,
    }
    with opened(name, url) as store, counted("Editing", len(named)) as told:
        answers = (
            rehearsed(store, named, WAITING)
            if dry_run
            else store.edit_many(named, told=told, **edits)
        )
    print_each(answers, "edited", (), dry_run, as_json)


@app.command("run-now", epilog=RUN_NOW_EPILOG)
@filtered
def run_now(
    which: Which,
    ids: Ids = None,
    all_jobs: All = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Run scheduled jobs now instead of later."""
    named = chosen(ids, which, all_jobs)
    if set(which.get("state", ())) - {State.SCHEDULED}:
        raise UsageError("only scheduled jobs can be run now; leave out --state")
    with opened(name, url) as store:
        if named:
            with counted("Making ready", len(named)) as told:
                answers = (
                    rehearsed(store, named, {State.SCHEDULED})
                    if dry_run
                    else store.run_now_many(named, told=told)
                )
            print_each(answers, "made ready", (), dry_run, as_json)
            return
        which.setdefault("state", [State.SCHEDULED])
        count = confirmed(store, which, "Run", "made ready", yes, dry_run, as_json)
        with counted("Making ready", count) as told:
            changed = store.run_now_all(told=told, **which)
    print_count(changed, "made ready", as_json)
