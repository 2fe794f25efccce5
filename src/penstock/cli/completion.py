"""What a shell may offer where a word is to be written.

A person who presses the tab key waits, and did not ask for anything to happen: names come from a
store only if it is there, from one read, and any trouble means that nothing is offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout

import typer

from penstock.core.job import Hold, State


def states(incomplete: str) -> list[str]:
    """The states of a job."""
    return _fitting(State, incomplete)


def holds(incomplete: str) -> list[str]:
    """The causes for which a job waits."""
    return _fitting(Hold, incomplete)


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """The queues that the store knows."""
    from penstock.app import Penstock

    return _known(context, incomplete, Penstock.queues)


def tasks(context: typer.Context, incomplete: str) -> list[str]:
    """The tasks of the workers, and of the latest jobs."""
    from penstock.app import Penstock

    def names(app: Penstock) -> set[str]:
        known = {task for worker in app.workers() for task in worker.tasks}
        return known | {job.task for job in app.find(limit=100).jobs}

    return _known(context, incomplete, names)


def workers(context: typer.Context, incomplete: str) -> list[str]:
    """The workers that have a lease."""
    from penstock.app import Penstock

    return _known(context, incomplete, lambda app: [worker.id for worker in Penstock.workers(app)])


def _known(context: typer.Context, incomplete: str, ask: Callable[..., Iterable[str]]) -> list[str]:
    from penstock.cli.store import opened

    try:
        # The shell reads stdout, and what an application's module prints would be in its way.
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            opened(context.params.get("name"), _url(context)) as app,
        ):
            return _fitting(ask(app), incomplete)
    except Exception:
        return []


def _url(context: typer.Context) -> str | None:
    """The store that the line names; bash cuts it at its colon."""
    cut = re.search(r"\n--url\n(?:=\n)?(\w+)\n:\n(//[^\n]*)", os.environ.get("COMP_WORDS", ""))
    return f"{cut[1]}:{cut[2]}" if cut else context.params.get("url")


def _fitting(words: Iterable[str], incomplete: str) -> list[str]:
    return sorted(str(word) for word in words if word.startswith(incomplete))
