"""``penstock worker``: run jobs, under a supervisor."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, cast

import typer

from penstock import logs
from penstock.cli.prompts import say
from penstock.cli.store import AppName, Url, one_name
from penstock.clock import SystemClock
from penstock.config import module_names
from penstock.core.units import seconds, size
from penstock.errors import AppNotFound, BadOption
from penstock.find_app import VARIABLE, find_app_on
from penstock.hosting import WorkerOptions
from penstock.stores import connect, parse
from penstock.worker.supervisor.host import check_watchable
from penstock.worker.supervisor.replica_messages import ReplicaSpec
from penstock.worker.supervisor.supervisor import Supervisor, SupervisorSettings
from penstock.worker_process import check_reachable

EPILOG = """\
Options that are not given are taken from the application's settings, whose own defaults are shown
here. A DURATION is written as 500ms, 90s or 1h30m.

Ctrl-C or SIGTERM lets running jobs end, for as long as --drain says. A second Ctrl-C stops at once
and gives running jobs back to the queue; a third kills. SIGHUP replaces all processes one by one
and loads the code anew. SIGUSR1 logs the status.

Exit codes: 0 it ended as told, even if hurried; 1 it gave up, or a process had to be killed; 2
wrong usage.

Example: penstock worker shop:app --processes 2 --queues mail=5,default
"""


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="The application; the same as --app. [default: PENSTOCK_APP]",
            show_default=False,
        ),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUES",
            help="Queues to serve: mail,default. With slots, mail=5,default=20: at most so many of "
            "their jobs at once, per process. [default: default and the queues of all tasks]",
        ),
    ] = None,
    exclude_queues: Annotated[
        str | None,
        typer.Option(metavar="QUEUES", help="Queues not to serve: reports,bulk. [default: none]"),
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="A module with tasks, or a pattern: shop.*.tasks; may be repeated. "
            "[default: none]",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", help="Async jobs at once, per process. [default: 100]"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Sync jobs at once, per process. [default: 8]")
    ] = None,
    children: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Jobs in child processes (isolation) at once, per process. [default: 4]",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", help="Worker processes.")] = 1,
    reserve: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRIORITY=SLOTS",
            help="Slots kept free for a priority: high=2; may be repeated. [default: none]",
        ),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long running jobs may take to end when the worker stops. [default: 30s]",
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long they may take to clean up after that. [default: 5s]"
        ),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long a worker without heartbeats keeps its jobs. [default: 15s]",
        ),
    ] = None,
    worker_name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="TEXT", help="The start of the workers' ids. [default: the host name]"
        ),
    ] = None,
    max_jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Replace a process after so many jobs. [default: no limit]"),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Replace a process that uses so much memory: 512MB. [default: no limit]",
        ),
    ] = None,
    stall_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Replace a process if a job does not end so long after its timeout or "
            "cancellation. [default: 30s]",
        ),
    ] = None,
    hang_limit: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Kill a process that has not reported for so long."),
    ] = "5m",
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when no job is left that is due.")
    ] = False,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart when code in the working directory changes."),
    ] = False,
    log_format: Annotated[
        str, typer.Option(metavar="text|json", help="The format of the log.")
    ] = "text",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical.")
    ] = "info",
    no_leads: Annotated[
        bool, typer.Option("--no-leads", help="Do not take part in the election of the leader.")
    ] = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Run the jobs of an application until told to stop."""
    options = {
        "queues": queues,
        "exclude_queues": exclude_queues,
        "concurrency": concurrency,
        "threads": threads,
        "children": children,
        "reserve": ",".join(reserve) if reserve else None,
        "drain": _duration("--drain", drain),
        "grace": _duration("--grace", grace),
        "lease": _duration("--lease", lease),
        "name": worker_name,
        "max_jobs": max_jobs,
        "max_memory": None if max_memory is None else size(max_memory, name="--max-memory"),
        "stall_limit": _duration("--stall-limit", stall_limit),
        "leads": False if no_leads else None,
    }
    logs.configure("json" if _one_of(log_format, logs.FORMATS) == "json" else "text", log_level)
    spec = ReplicaSpec(
        app=_app_name(one_name(app, name)),
        url=None if url is None else parse(url).absolute,
        options={name: value for name, value in options.items() if value is not None},
        imports=module_names("--import", imports or ()),
        until_empty=until_empty,
        log_format=log_format,
        log_level=log_level,
    )
    settings = SupervisorSettings(
        processes=processes,
        hang_limit=seconds(hang_limit, name="--hang-limit"),
        reloads_from=_here() if reload else None,
    )
    if sys.platform == "win32":
        _run_alone(spec, settings)
    else:
        raise typer.Exit(_supervise(spec, settings))


def _supervise(spec: ReplicaSpec, settings: SupervisorSettings) -> int:
    logs.capture()
    clock = SystemClock()

    async def run() -> int:
        return await Supervisor(
            partial(connect, clock=clock), spec, settings, clock=clock, environ=os.environ
        ).run()

    return asyncio.run(run())


def _run_alone(spec: ReplicaSpec, settings: SupervisorSettings) -> None:
    """Run the worker in this process: Windows has no signals to supervise by."""
    if settings.processes > 1 or settings.reloads_from is not None:
        why = "Windows has no supervisor; start one command per process, and again for new code"
        raise BadOption("processes", settings.processes, why)
    options: Mapping[str, Any] = spec.options
    app, warning = find_app_on(spec.app, spec.url, spec.imports)
    if warning is not None:
        say(f"Warning: {warning}.")
    check_reachable(app)
    app.run_worker(until_empty=spec.until_empty, **cast(WorkerOptions, dict(options)))


def _app_name(app: str | None) -> str:
    """The application to load; refused here, before any process starts, if none is named."""
    named = app or os.environ.get(VARIABLE, "")
    if not named.strip():
        why = f"none is named; write penstock worker module:app, or set {VARIABLE}"
        raise AppNotFound("", why)
    return named


def _here() -> str:
    check_watchable()
    return os.getcwd()


def _duration(option: str, value: str | None) -> float | None:
    return None if value is None else seconds(value, name=option)


def _one_of(value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise BadOption("log_format", value, f"give one of {', '.join(known)}")
    return value
