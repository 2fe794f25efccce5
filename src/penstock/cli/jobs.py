"""``penstock jobs``: see jobs, page by page or one by one."""

from __future__ import annotations

import shlex
from typing import Annotated, Final

import typer

from penstock.cli import bulk
from penstock.cli.dialogue import say
from penstock.cli.filters import HELP, as_options, filtered
from penstock.cli.groups import group
from penstock.cli.job_record import COLUMNS, print_page, record, row
from penstock.cli.output import AsJson, Table, print_json, print_json_line
from penstock.cli.store import Url, opened
from penstock.engines.records import Page
from penstock.operations import Which

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
    table = Table(COLUMNS)
    with opened(url) as store:
        now = store.now()
        while True:
            size = PAGE_OF_ALL if all_pages else limit
            page = store.find(limit=size, cursor=cursor, **which)
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
        _say_the_rest(page, which, limit, url, all_pages)


def _say_the_rest(page: Page, which: Which, limit: int, url: str | None, all_pages: bool) -> None:
    """That there is nothing, or how to see what comes next."""
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
        job = store.job(id).status()
        if as_json:
            print_json(record(job))
        else:
            why = None if job.state.is_final else store.explain(id).verdict
            print_page(job, store.now(), why)


app.command("retry", epilog=bulk.RETRY_EPILOG)(bulk.retry)
app.command("cancel", epilog=bulk.CANCEL_EPILOG)(bulk.cancel)
app.command("purge", epilog=bulk.PURGE_EPILOG)(bulk.purge)
