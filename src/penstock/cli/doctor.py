"""``penstock doctor``: what is wrong with a store, and what to do about it."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Annotated, Any, Final

import typer

from penstock.app import Penstock
from penstock.cli.next_steps import copyable
from penstock.cli.output import AsJson, print_json, print_line
from penstock.cli.store import Url, check_shared
from penstock.core.finding import Finding, Level
from penstock.errors import BadOption
from penstock.find_app import VARIABLE, find_app

EPILOG = """\
Nothing is made, migrated or changed, unless --repair is given. With an application its tasks and
settings are compared with those of the workers and of the jobs that wait.

Whether workers live is seen by watching their beats: that ends as soon as each has shown one, and
at most after --watch, which is by default a little longer than the pause between two.

Exit codes: 0 nothing is worse than a note; 1 something is, or the store cannot be reached; 2 it was
called in a wrong way.

Example: penstock doctor shop:app
"""

_WORST_FIRST: Final = (Level.ERROR, Level.WARNING, Level.NOTE, Level.OK)


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]", help=f"The application to compare with; else {VARIABLE}."
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Lift holds without a cause, free keys nobody needs.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also check that every page of the store is sound.")
    ] = False,
    watch: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long to watch for signs of life."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Look at a store, its workers and its queues; say what is wrong and what to do."""
    with _application(app, url) as found:
        check_shared(found)
        findings = asyncio.run(found.adoctor(watch=watch, thorough=thorough, repair=repair))
        copied = [copyable(finding, found) for finding in findings]
    ordered = sorted(copied, key=lambda finding: _WORST_FIRST.index(finding.level))
    if as_json:
        print_json(to_json(ordered))
    else:
        _print(ordered)
    if ordered[0].level.is_bad:
        raise typer.Exit(1)


def _application(app: str | None, url: str | None) -> Penstock:
    if app is not None and url is not None:
        raise BadOption("--url", url, "the application says where its store is; give one of them")
    if app is None and (url is not None or not os.environ.get(VARIABLE, "").strip()):
        return Penstock(url)
    return find_app(app)


def to_json(ordered: list[Finding]) -> dict[str, Any]:
    """The document that ``--json`` prints."""
    return {
        "worst": ordered[0].level,
        "findings": [
            {
                "check": finding.check,
                "level": finding.level,
                "text": finding.text,
                "next_step": finding.next_step,
                "facts": dict(finding.facts),
            }
            for finding in ordered
        ],
    }


def _print(ordered: list[Finding]) -> None:
    width = max(len(level) for level in Level)
    for finding in ordered:
        print_line(f"{finding.level.ljust(width)}  {finding.check}: {finding.text}")
        if finding.next_step is not None:
            print_line(f"{' ' * width}  next: {finding.next_step}")
    counted = Counter(finding.level for finding in ordered)
    print_line(", ".join(f"{counted[level]} {level}" for level in _WORST_FIRST if counted[level]))
