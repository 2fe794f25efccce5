"""``penstock queues``: list, pause, resume and configure queues."""

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
from penstock.cli.store import AppName, Url, opened
from penstock.core.job import State
from penstock.engines.records import Count, QueueSettings
from penstock.errors import BadOption, UsageError
from penstock.operations import QueueChanges

LIST_EPILOG = """\
READY jobs can start now; HELD jobs wait for a reason that `penstock explain` shows. WORKERS is the
number of workers that serve the queue at the moment.

Example: penstock queues list --json
"""
PAUSE_EPILOG = """\
Running jobs continue; no other job of the queue starts until `penstock queues resume`. A queue that
does not exist yet is paused too, with a warning. --all pauses the queues that exist now, not those
that appear later.

Example: penstock queues pause mail --note "provider is down"
"""
RESUME_EPILOG = """\
--all resumes every paused queue, whatever it was paused for.

Example: penstock queues resume mail
"""
SET_EPILOG = """\
Options that are not given leave the setting as it is. --weight sets the share of a key in a fair
queue, which is 1 by default; --weight KEY=none removes it.

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
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUEUE", help="The queues.", autocompletion=completion.queues),
]
All = Annotated[bool, typer.Option("--all", help="All queues.")]

app = group("queues", "List, pause, resume and configure queues.")


@app.command("list", epilog=LIST_EPILOG)
def list_queues(as_json: AsJson = False, name: AppName = None, url: Url = None) -> None:
    """List every queue that has jobs, settings or workers."""
    with opened(name, url) as store:
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
    queues: Names = None,
    all_queues: All = False,
    note: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Why, for the people who find it paused. [default: none]"
        ),
    ] = None,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Stop starting jobs of queues."""
    with opened(name, url) as store:
        chosen = _chosen(store, queues, all_queues=all_queues)
        _set_paused(store, chosen, paused=True, note=note, as_json=as_json, is_list=all_queues)


@app.command("resume", epilog=RESUME_EPILOG)
def resume(
    queues: Names = None,
    all_queues: All = False,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Start jobs of paused queues again."""
    with opened(name, url) as store:
        chosen = _chosen(store, queues, all_queues=all_queues)
        if all_queues:
            known = store.queues()
            chosen = [each for each in chosen if each in known and known[each].paused]
        _set_paused(store, chosen, paused=False, note=None, as_json=as_json, is_list=all_queues)


def _chosen(store: Penstock, queues: Sequence[str] | None, *, all_queues: bool) -> list[str]:
    if all_queues and queues:
        raise UsageError("both queues and --all are given; give one or the other")
    if all_queues:
        served = {each for worker in store.workers() for each in worker.queues}
        return sorted(served | store.queues().keys())
    if not queues:
        raise UsageError("no queue is given; name one or more, or give --all")
    return list(dict.fromkeys(queues))


def _set_paused(
    store: Penstock,
    queues: Sequence[str],
    *,
    paused: bool,
    note: str | None,
    as_json: bool,
    is_list: bool,
) -> None:
    """Change queue after queue: if the command is stopped, those before it are changed."""
    done = "paused" if paused else "resumed"
    records = []
    for queue in queues:
        _warn_of_typo(store, queue)
        settings = store.set_queue(queue, paused=paused, note=note)
        records.append({"name": queue, **_settings(settings)})
        if not as_json:
            print_line(f"Queue {queue} {done}.")
    if as_json:
        print_json(records[0] if len(records) == 1 and not is_list else {"queues": records})
    elif not records:
        say(f"No queue to be {done}.")


@app.command("set", epilog=SET_EPILOG)
def set_queue(
    queue: Name,
    max_running: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Jobs that may run at once, on all workers together."),
    ] = None,
    ordered: Annotated[
        bool | None, typer.Option("--ordered/--no-ordered", help="Run one job at a time, in order.")
    ] = None,
    fair: Annotated[
        bool | None, typer.Option("--fair/--no-fair", help="Let keys take turns.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=SHARE", help="The share of a key: acme=2; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Change the settings of a queue."""
    changes: QueueChanges = {}
    if max_running is not None:
        changes["max_running"] = _limit(max_running)
    if ordered is not None:
        changes["ordered"] = ordered
    if fair is not None:
        changes["fair"] = fair
    if not changes and not weight:
        raise UsageError("no change is given; add --max-running, --ordered, --fair or --weight")
    shares = [_share(each) for each in weight or ()]
    with opened(name, url) as store:
        _warn_of_typo(store, queue)
        if shares:
            weights = dict(store.queues().get(queue, QueueSettings()).weights) | dict(shares)
            changes["weights"] = {key: share for key, share in weights.items() if share is not None}
        settings = store.set_queue(queue, **changes)
    if as_json:
        print_json({"name": queue, **_settings(settings)})
    else:
        print_line(f"Queue {queue} updated.")


def _warn_of_typo(store: Penstock, queue: str) -> None:
    served = {each for worker in store.workers() for each in worker.queues}
    known = served | store.queues().keys()
    if queue not in known:
        near = get_close_matches(queue, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        say(f"Warning: there is no queue {queue!r} yet: no job, setting or worker names it.{hint}")


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
