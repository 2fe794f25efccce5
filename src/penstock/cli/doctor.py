"""``penstock doctor``: what is wrong with a store, and what to do about it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any, Final

import typer

from penstock.cli.next_steps import copyable
from penstock.cli.output import AsJson, print_json, print_line, print_wrapped
from penstock.cli.store import AppName, Url, one_name, options, shared
from penstock.core.finding import Finding, Level
from penstock.explain.reasons import number

EPILOG = """\
Nothing is created, migrated or changed unless --repair is given. If an application is named, its
tasks and settings are compared with those of the workers and of the waiting jobs.

To see which workers are alive, the command waits for one heartbeat of each, at most as long as
--watch says.

Exit codes: 0 no errors or warnings; 1 there are some, or the store cannot be reached; 2 wrong
usage.

Example: penstock doctor shop:app
"""

_WORST_FIRST: Final = (Level.ERROR, Level.WARNING, Level.NOTE, Level.OK)
_PLURALS: Final = {Level.OK: "ok", **{level: f"{level}s" for level in _WORST_FIRST[:3]}}


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="The application to compare with; the same as --app.",
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Release holds that have no cause and unique keys that no job needs."
        ),
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also check every page of the store for damage.")
    ] = False,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long to wait for heartbeats at most. [default: 0.3 of the workers' lease]",
        ),
    ] = None,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Check a store, its workers and its queues, and say what is wrong and what to do."""
    named = one_name(app, name)
    with shared(named, url) as found:
        findings = asyncio.run(found.adoctor(watch=watch, thorough=thorough, repair=repair))
    copied = [copyable(finding, options(named, url)) for finding in findings]
    ordered = sorted(copied, key=lambda finding: _WORST_FIRST.index(finding.level))
    if as_json:
        print_json(to_json(ordered))
    else:
        _print(ordered)
    if ordered[0].level.is_bad:
        raise typer.Exit(1)


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
        text = f"{finding.level.ljust(width)}  {finding.check}: {finding.text}"
        print_wrapped(text, indent=width + 2)
        if finding.next_step is not None:
            print_wrapped(f"{' ' * width}  next: {finding.next_step}", indent=width + 8)
    counted = Counter(finding.level for finding in ordered)
    counts = [(counted[level], level) for level in _WORST_FIRST if counted[level]]
    print_line(", ".join(number(count, level, _PLURALS[level]) for count, level in counts))
