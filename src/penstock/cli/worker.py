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
from penstock.clock import SystemClock
from penstock.config import module_names
from penstock.core.units import seconds, size
from penstock.errors import AppNotFound, BadOption
from penstock.find_app import VARIABLE, find_app
from penstock.hosting import WorkerOptions
from penstock.stores import connect
from penstock.worker.supervisor.host import check_watchable
from penstock.worker.supervisor.replica_messages import ReplicaSpec
from penstock.worker.supervisor.supervisor import Supervisor, SupervisorSettings

EPILOG = """\
What is not given is as the application's settings say. A DURATION is written 500ms, 90s or 1h30m.

Ctrl-C or SIGTERM lets running attempts end, for as long as --drain says; the second one gives them
back at once, the third one kills. SIGHUP replaces all processes one by one, with the code as it is
then. SIGUSR1 shows the status.

Exit codes: 0 it ended as told, also when it was hurried; 1 it gave up, or a process had to be
killed; 2 it was called in a wrong way.

Example: penstock worker shop:app --processes 2 --queues mail,default
"""


def worker(
    app: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help=f"The application; else {VARIABLE}."),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(help="Queues to serve, with commas; else all that its tasks name."),
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Modules with tasks, or shop.*.tasks."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Attempts of async tasks at once, per process.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Attempts of sync tasks at once, per process.")
    ] = None,
    children: Annotated[
        int | None, typer.Option(help="Attempts of isolated tasks at once, per process.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    reserve: Annotated[
        list[str] | None,
        typer.Option(metavar="PRIORITY=SLOTS", help="Slots kept for a priority: high=2."),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long attempts may go on when it stops."),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long, after that, they may clean up."),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long a silent worker keeps its jobs."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Begins the workers' ids; else the host's name.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(help="Jobs after which a process is replaced.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory at which a process is replaced: 512MB."),
    ] = None,
    stall_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long an attempt that must end may go on before its process is replaced.",
        ),
    ] = None,
    hang_limit: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long a process may be silent before it is killed."
        ),
    ] = "5m",
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is left that is due.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Replace processes when code changes here.")
    ] = False,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="How to log.")] = "text",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical.")
    ] = "info",
    no_leads: Annotated[
        bool, typer.Option("--no-leads", help="Do not stand for election as the leader.")
    ] = False,
) -> None:
    """Run the jobs of an application until told to stop."""
    options = {
        "queues": queues,
        "concurrency": concurrency,
        "threads": threads,
        "children": children,
        "reserve": ",".join(reserve) if reserve else None,
        "drain": _duration("--drain", drain),
        "grace": _duration("--grace", grace),
        "lease": _duration("--lease", lease),
        "name": name,
        "max_jobs": max_jobs,
        "max_memory": None if max_memory is None else size(max_memory, name="--max-memory"),
        "stall_limit": _duration("--stall-limit", stall_limit),
        "leads": False if no_leads else None,
    }
    logs.configure("json" if _one_of(log_format, logs.FORMATS) == "json" else "text", log_level)
    spec = ReplicaSpec(
        app=_app_name(app),
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
    find_app(spec.app, spec.imports).run_worker(
        until_empty=spec.until_empty, **cast(WorkerOptions, dict(options))
    )


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
