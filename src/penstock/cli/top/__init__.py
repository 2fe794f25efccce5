"""``penstock top``: a live screen of queues, workers, running jobs, rates and failures."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.output import AsJson
from penstock.cli.store import AppName, Url, shared, source
from penstock.core.units import seconds
from penstock.errors import BadOption

EPILOG: Final = """\
Keys: up and down select a job, e explains it, c cancels it; tab, left and right choose what is
listed; p pauses the screen, ? shows all keys, q quits.

Rates are averages over the last 10 seconds. They count jobs that were enqueued or have ended; an
attempt that will be retried counts as neither. BEAT is known once a heartbeat has been seen, which
--once does not wait for.

Example: penstock top --interval 500ms
"""

FASTEST: Final = 0.1


def top(
    interval: Annotated[str, typer.Option(metavar="DURATION", help="How often to refresh.")] = "1s",
    once: Annotated[
        bool,
        typer.Option("--once", help="Print one screen and exit, as it does without a terminal."),
    ] = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Show queues, workers, running jobs, rates and failures, live."""
    # Here, because only this command draws: what draws takes a while to import.
    from penstock.cli.top.live import watch_store

    every = seconds(interval, name="--interval")
    if every < FASTEST:
        raise BadOption("--interval", interval, f"give {FASTEST:g}s or more")
    with shared(name, url) as app:
        watch_store(app, source(app, name, url), every, once=once, as_json=as_json)
