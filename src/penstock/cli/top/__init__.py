"""``penstock top``: a live screen of queues, workers, running jobs, rates and failures."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.output import AsJson
from penstock.cli.store import Url
from penstock.core.units import seconds
from penstock.errors import BadOption

EPILOG: Final = """\
Keys: q quits, p pauses the screen, tab and the arrows choose what is listed.

Rates are of the last 10 seconds, and count jobs that came in or ended for good: an attempt that is
tried again is none of them. A worker's beat is known once it has been seen to grow, which --once
does not wait for.

Example: penstock top --interval 500ms
"""

FASTEST: Final = 0.1


def top(
    url: Url = None,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="How often to look at the store.")
    ] = "1s",
    once: Annotated[
        bool,
        typer.Option("--once", help="Print one screen and end; so it does without a terminal."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how the store does, live."""
    # Here, because only this command draws: what draws takes a while to import.
    from penstock.cli.top.live import watch_store

    every = seconds(interval, name="--interval")
    if every < FASTEST:
        raise BadOption("--interval", interval, f"give {FASTEST:g}s or more")
    watch_store(url, every, once=once, as_json=as_json)
