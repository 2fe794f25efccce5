"""``penstock explain``: why a job has not run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec.structs import replace

from penstock.cli.next_steps import copyable
from penstock.cli.output import AsJson, print_json, print_line, print_wrapped
from penstock.cli.prompts import say
from penstock.cli.store import AppName, Url, opened, options
from penstock.cli.times import iso
from penstock.explain import Explanation, Reason

EPILOG = """\
Whether a worker is still alive can only be seen by waiting for its next heartbeat. The command
waits until it has seen one, at most as long as --watch says.

Exit codes: 0 the job was found; 1 it is not in the store, or the store cannot be reached; 2 wrong
usage.

Example: penstock explain 5f2c09a1b3d4e5f60718
"""


def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    watch: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long to wait for heartbeats at most."),
    ] = "4s",
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Explain why a job has not run: every reason, the most important first, and what to do."""
    with opened(name, url) as app:
        found = app.explain(job, watch=watch)
    reasons = tuple(copyable(reason, options(name, url)) for reason in found.reasons)
    found = replace(found, reasons=reasons)
    if as_json:
        print_json(to_json(found))
    elif found.state is None:
        say(f"Error: job {found.id}: {found.verdict}; {found.reasons[0].next_step}")
    else:
        _print(found)
    if found.state is None:
        raise typer.Exit(1)


def to_json(found: Explanation) -> dict[str, Any]:
    """The document that ``--json`` prints."""
    return {
        "id": found.id,
        "state": found.state,
        "task": found.task,
        "queue": found.queue,
        "verdict": found.verdict,
        "reasons": [_reason(reason) for reason in found.reasons],
        "asked_at": iso(found.asked_at),
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "text": reason.text,
        "next_step": reason.next_step,
        "since_at": iso(reason.since_at),
        "until_at": iso(reason.until_at),
    }


def _print(found: Explanation) -> None:
    print_line(f"job {found.id} of task {found.task} in queue {found.queue} is {found.state}")
    for number, reason in enumerate(found.reasons, 1):
        print_wrapped(f"{number}. {reason.text}", indent=3)
        if reason.next_step is not None:
            print_wrapped(f"   next: {reason.next_step}", indent=9)
