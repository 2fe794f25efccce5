"""``penstock queues``: see what waits where, pause and resume, decide how a queue is served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer

from penstock.app import Penstock
from penstock.cli import completion
from penstock.cli.output import AsJson, Column, print_json, print_line, print_table
from penstock.cli.program import group
from penstock.cli.prompts import say
from penstock.cli.store import Url, opened
from penstock.core.job import State
from penstock.engines.records import Count, QueueSettings
from penstock.errors import BadOption, UsageError
from penstock.operations import QueueChanges

LIST_EPILOG = """\
READY jobs could start now, HELD ones wait for a cause that `penstock explain` tells. WORKERS serve
the queue at this moment.

Example: penstock queues list --json
"""
PAUSE_EPILOG = """\
What runs goes on; nothing else of the queue starts until `penstock queues resume`. A queue that
nobody has heard of is paused as well, with a warning.

Example: penstock queues pause mail --note "provider is down"
"""
RESUME_EPILOG = """\
Example: penstock queues resume mail
"""
SET_EPILOG = """\
What is not given stays as it is. --weight is a key's share in a fair queue, 1 if not named; none
removes it.

Example: penstock queues set mail --max-running 20 --fair --weight acme=2
"""

_COLUMNS: Final = (
    Column("QUEUE"),
    Column("READY", align="right"),
    Column("SCHEDULED", align="right"),
    Column("RUNNING", align="right"),
    Column("FAILED", align="right"),
    Column("WORKERS", align="right"),
    Column("HELD", align="right", optional=True),
    Column("SETTINGS", shrink=True),
)

Name = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=completion.queues)
]

app = group("queues", "See, pause and resume queues, decide about them.")


@app.command("list", epilog=LIST_EPILOG)
def list_queues(as_json: AsJson = False, url: Url = None) -> None:
    """List every queue that has a job, a setting or a worker."""
    with opened(url) as store:
        queues, counts, workers = store.queues(), store.counts(), store.workers()
    served = Counter(queue for worker in workers for queue in worker.queues)
    records = [
        _record(name, queues.get(name, QueueSettings()), counts, served[name])
        for name in sorted({*queues, *served})
    ]
    if as_json:
        print_json({"queues": records})
        return
    print_table(_COLUMNS, [_row(each) for each in records])
    if not records:
        say("There are no queues.")


@app.command("pause", epilog=PAUSE_EPILOG)
def pause(
    queue: Name,
    note: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why, for the next person.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Let no worker take jobs of a queue."""
    _change(url, queue, {"paused": True, "note": note}, f"Queue {queue} is paused.", as_json)


@app.command("resume", epilog=RESUME_EPILOG)
def resume(queue: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Let workers take jobs of a queue again."""
    _change(url, queue, {"paused": False, "note": None}, f"Queue {queue} is served.", as_json)


@app.command("set", epilog=SET_EPILOG)
def set_queue(
    queue: Name,
    max_running: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Attempts at once, over all workers."),
    ] = None,
    ordered: Annotated[
        bool | None, typer.Option("--ordered/--no-ordered", help="One job after the other.")
    ] = None,
    fair: Annotated[
        bool | None, typer.Option("--fair/--no-fair", help="Shared between keys.")
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="KEY=SHARE", help="A key's share: acme=2.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Decide how a queue is served."""
    changes: QueueChanges = {}
    if max_running is not None:
        changes["max_running"] = _limit(max_running)
    if ordered is not None:
        changes["ordered"] = ordered
    if fair is not None:
        changes["fair"] = fair
    if not changes and not weight:
        raise UsageError("nothing is to be set; give --max-running, --ordered, --fair or --weight")
    shares = [_share(each) for each in weight or ()]
    _change(url, queue, changes, f"Queue {queue} is set.", as_json, shares)


def _change(
    url: str | None,
    queue: str,
    changes: QueueChanges,
    told: str,
    as_json: bool,
    shares: Sequence[tuple[str, float | None]] = (),
) -> None:
    with opened(url) as store:
        _warn_of_typo(store, queue)
        if shares:
            weights = dict(store.queues().get(queue, QueueSettings()).weights) | dict(shares)
            changes["weights"] = {key: share for key, share in weights.items() if share is not None}
        settings = store.set_queue(queue, **changes)
    if as_json:
        print_json({"name": queue, **_settings(settings)})
    else:
        print_line(told)


def _warn_of_typo(store: Penstock, queue: str) -> None:
    served = {each for worker in store.workers() for each in worker.queues}
    known = served | store.queues().keys()
    if queue not in known:
        near = get_close_matches(queue, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        say(f"Warning: no job, setting or worker has named queue {queue!r} so far.{hint}")


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise BadOption("--max-running", text, "give a whole number from 1, or none for no limit")
    return int(text)


def _share(text: str) -> tuple[str, float | None]:
    key, found, share = text.rpartition("=")
    try:
        if found and key:
            return key, None if share == "none" else float(share)
    except ValueError:
        pass
    raise BadOption("--weight", text, "give a key and its share, such as acme=2 or acme=none")


# --- what is shown ------------------------------------------------------------------------------


def _record(
    name: str, settings: QueueSettings, counts: Sequence[Count], workers: int
) -> dict[str, Any]:
    own = [count for count in counts if count.queue == name]
    jobs = {
        state.value: sum(each.jobs for each in own if each.state is state and not each.hold)
        for state in State
    }
    held = sum(each.jobs for each in own if each.hold)
    return {"name": name, **_settings(settings), **jobs, "held": held, "workers": workers}


def _settings(settings: QueueSettings) -> dict[str, Any]:
    return {
        "paused": settings.paused,
        "note": settings.note,
        "max_running": settings.max_running,
        "ordered": settings.ordered,
        "fair": settings.fair,
        "weights": dict(sorted(settings.weights.items())),
    }


def _row(queue: Mapping[str, Any]) -> Sequence[str]:
    numbers = ("ready", "scheduled", "running", "failed", "workers", "held")
    return (queue["name"], *(str(queue[name]) for name in numbers), _words(queue))


def _words(queue: Mapping[str, Any]) -> str:
    note = f" ({queue['note']})" if queue["note"] else ""
    words = [f"paused{note}"] if queue["paused"] else []
    if queue["max_running"] is not None:
        words.append(f"max_running {queue['max_running']}")
    words += [word for word in ("ordered", "fair") if queue[word]]
    words += [f"{key}={share:g}" for key, share in queue["weights"].items()]
    return ", ".join(words)
