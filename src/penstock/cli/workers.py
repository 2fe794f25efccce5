"""``penstock workers``: list workers, and drain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from penstock.cli import completion
from penstock.cli.output import AsJson, Column, print_json, print_line, print_table
from penstock.cli.program import group
from penstock.cli.prompts import say
from penstock.cli.store import AppName, Url, opened
from penstock.cli.times import iso, rough
from penstock.core.units import seconds
from penstock.engines.records import WorkerInfo

LIST_EPILOG = """\
A worker is one process. It is listed as long as it has a lease, so one that was killed stays for up
to a lease (15s by default); `penstock doctor` finds out which workers are alive. BUSY is the number
of its jobs and of its slots.

Example: penstock workers list
"""
DRAIN_EPILOG = """\
A drained worker takes no more jobs, lets its running jobs end, and stops. It is told with its next
heartbeat, within a fifth of its lease (3s by default), on whatever machine it runs. `penstock
worker` does not start another process in its place, and exits when its last process has stopped.

Exit codes: 0 all of the workers were told; 1 one of them is not in the store; 2 wrong usage.

Example: penstock workers drain web-1-4711-5f2c09a1
"""

_COLUMNS: Final = (
    Column("WORKER"),
    Column("HOST", shrink=True, optional=True),
    Column("PID", align="right", optional=True),
    Column("BUSY", align="right"),
    Column("TASKS", align="right", optional=True),
    Column("JOINED", align="right", optional=True),
    Column("STATE"),
    Column("QUEUES", shrink=True),
)

app = group("workers", "List workers, and drain one before a deploy.")


@app.command("list", epilog=LIST_EPILOG)
def list_workers(as_json: AsJson = False, name: AppName = None, url: Url = None) -> None:
    """List the workers, the one that joined first at the top."""
    with opened(name, url) as store:
        workers, draining, now = store.workers(), store.draining(), store.now()
        busy = store.busy()
    records = [_record(each, busy.get(each.id, 0), each.id in draining) for each in workers]
    if as_json:
        print_json({"workers": records})
        return
    ages = [now - worker.joined_at for worker in workers]
    print_table(_COLUMNS, [_row(*each) for each in zip(records, ages, strict=True)])
    if not records:
        say("There are no workers.")


@app.command("drain", epilog=DRAIN_EPILOG)
def drain(
    workers: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKER",
            help="The workers, as `penstock workers list` names them.",
            autocompletion=completion.workers,
        ),
    ],
    within: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long running jobs may take to end. [default: the worker's --drain]",
        ),
    ] = None,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Let workers finish their running jobs and stop."""
    limit = None if within is None else seconds(within, name="--within")
    told: dict[str, bool] = {}
    with opened(name, url) as store:
        for worker in dict.fromkeys(workers):
            told[worker] = store.drain_worker(worker, limit)
            if as_json:
                continue
            if told[worker]:
                print_line(f"Worker {worker} will stop when its running jobs have ended.")
            else:
                say(f"Error: there is no worker {worker!r}; see penstock workers list")
    if as_json:
        records = [{"worker": worker, "draining": is_told} for worker, is_told in told.items()]
        print_json({"workers": records})
    if not all(told.values()):
        raise typer.Exit(1)


def _record(worker: WorkerInfo, busy: int, is_draining: bool) -> dict[str, Any]:
    return {
        "worker": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "queue_slots": dict(worker.queue_slots),
        "tasks": list(worker.tasks),
        "slots": worker.slots,
        "busy": busy,
        "draining": is_draining,
        "lease": worker.lease,
        "joined_at": iso(worker.joined_at),
    }


def _row(worker: Mapping[str, Any], age: float) -> Sequence[str]:
    slots = worker["queue_slots"]
    queues = (f"{queue}={slots[queue]}" if queue in slots else queue for queue in worker["queues"])
    return (
        worker["worker"],
        worker["host"],
        str(worker["pid"]),
        f"{worker['busy']} of {worker['slots']}",
        str(len(worker["tasks"])),
        f"{rough(max(0.0, age))} ago",
        "draining" if worker["draining"] else "working",
        ", ".join(queues),
    )
