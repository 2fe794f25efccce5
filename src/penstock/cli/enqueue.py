"""``penstock enqueue``: store jobs from a shell, one or a whole file of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
import typer

from penstock.app import Penstock
from penstock.cli import completion
from penstock.cli.calls import InputLine, StoredSoFar, arguments, batches, named, options_of
from penstock.cli.output import AsJson, print_block, print_json, print_json_line, print_line
from penstock.cli.prompts import progress, say
from penstock.cli.store import AppName, Url, app_name, shared, stored_job
from penstock.core.units import seconds
from penstock.errors import BadItem, BadOption, EngineError, IdConflict, UsageError
from penstock.handle import Handle
from penstock.options import word

EPILOG = """\
Give the arguments as one JSON object, or one by one as NAME=TEXT and NAME:=JSON. With - instead of
arguments, each line of the input is one such object. With - instead of a task, each line is an
object with task, args and any of the options, named as in Python:
{"task": "shop.send", "args": {"to": "ada"}, "delay": "5m"}.

With --app (or PENSTOCK_APP), the application checks that it has the task and that the arguments
fit, and applies the task's options. With --url alone, the job is stored by name without a check,
and waits for a worker that knows the task. The id of each job is printed; with --wait, its result.

Lines are stored in batches of 1,000. If the command ends early, it says how many jobs are stored
and which line to continue with; lines with an id of their own can simply be sent again.

A DURATION is written as 500ms, 90s or 1h30m.

Exit codes: 0 the job is stored, and with --wait it succeeded; 1 the store did not accept it, or
with --wait it failed or took too long; 2 wrong usage.

Example: penstock enqueue shop.send to=ada@example.com count:=3 --app shop:app --delay 5m
"""

_WHAT: Final[Mapping[str | None, str]] = MappingProxyType({"id": "id", "unique": "unique key"})


def enqueue(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="The task's name; - reads jobs from the input.",
            autocompletion=completion.tasks,
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The arguments: JSON, NAME=TEXT, NAME:=JSON, or -."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE",
            help="The queue. [default: the task's, else default]",
            autocompletion=completion.queues,
        ),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            metavar="PRIORITY",
            help="high, normal, low, a label of your app, or a number. [default: the task's, else "
            "normal]",
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Run it that long from now. [default: at once]"),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Run it then: 2026-11-16T03:20+00:00. [default: at once]"
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Cancel it if it has not started by then. [default: never]"
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The tenant or resource it belongs to. [default: none]"),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="An id of your own; enqueuing it twice does nothing. [default: a new id]",
        ),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Skip the job while another one has this key. [default: none]"
        ),
    ] = None,
    unique_scope: Annotated[
        str | None,
        typer.Option(
            metavar="task|app", help="Whose key it is: the task's, or all tasks'. [default: task]"
        ),
    ] = None,
    unique_until: Annotated[
        str | None,
        typer.Option(metavar="done|start", help="When the key is released. [default: done]"),
    ] = None,
    unique_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Keep the key at least this long. [default: until released]"
        ),
    ] = None,
    at_most_once: Annotated[
        bool,
        typer.Option("--at-most-once", help="Never run it a second time, not even after a crash."),
    ] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="A tag; may be repeated. [default: none]"),
    ] = None,
    job_name: Annotated[
        str | None,
        typer.Option("--name", metavar="TEXT", help="A name for people to read. [default: none]"),
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The request or workflow it is part of. [default: none]"),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended and print its result.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long to wait at most. [default: no limit]"),
    ] = None,
    as_json: AsJson = False,
    name: AppName = None,
    url: Url = None,
) -> None:
    """Enqueue jobs and print their ids."""
    options = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": run_at,
        "expires_in": expires_in,
        "key": key,
        "id": id,
        "unique": unique,
        "unique_scope": unique_scope,
        "unique_until": unique_until,
        "unique_for": unique_for,
        "at_most_once": at_most_once or None,
        "tags": tag or None,
        "name": job_name,
        "correlation_id": correlation_id,
    }
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait")
    limit = None if timeout is None else seconds(timeout, name="--timeout")
    with _application(name, url) as (store, check):
        if task == "-" or args == ["-"]:
            if task == "-" and args:
                raise UsageError(
                    "with - the arguments come from the input; give none on the command line"
                )
            handles = _store_lines(
                store, check, None if task == "-" else task, options, as_json, wait
            )
        else:
            call = arguments(task, args or ())
            check(task)
            handles = [store.enqueue(task, call, **options_of(options))]
            _tell(handles, as_json=as_json, wait=wait, is_one=True)
        for handle in handles if wait else ():
            _wait(store, handle, limit, as_json=as_json, is_one=len(handles) == 1)


@contextmanager
def _application(
    name: str | None, url: str | None
) -> Iterator[tuple[Penstock, Callable[[str], None]]]:
    """The named application, or one without tasks on the named store; and a check that refuses a
    task that the application does not have.
    """
    chosen = app_name(name, url)
    with shared(name, url) as app:
        yield app, partial(_check_task, chosen, app.tasks) if chosen else lambda _: None


def _check_task(target: str, known: Iterable[str], task: str) -> None:
    """Refuse a job that no worker of the application would ever run."""
    if word("task", task) in known:
        return
    near = _nearest(task, known)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    why = f"{target} has no such task; {hint}"
    why += "to store a job by name without this check, give --url alone"
    raise BadOption("task", task, why)


def _nearest(task: str, known: Iterable[str]) -> list[str]:
    """The names that may have been meant, whole or without the module that they begin with."""
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    last = get_close_matches(task.rpartition(".")[2], by_last, 3)
    near = [*get_close_matches(task, known, 3), *(name for each in last for name in by_last[each])]
    return list(dict.fromkeys(near))[:3]


def _store_lines(
    store: Penstock,
    check: Callable[[str], None],
    task: str | None,
    options: Mapping[str, Any],
    as_json: bool,
    wait: bool,
) -> list[Handle[Any]]:
    """Store what the input says, batch by batch; return the handles if they are awaited."""
    kept: list[Handle[Any]] = []
    stored = StoredSoFar()
    # A bar among the ids, on the same screen, would be in their way.
    bar = nullcontext(lambda _: None) if sys.stdout.isatty() else progress("Enqueuing", None)
    try:
        with bar as told:
            for batch in batches(sys.stdin, task, options):
                _check_tasks(check, batch)
                stored = replace(stored, under_way=len(batch))
                handles, conflict = _store_batch(store, batch)
                stored = StoredSoFar(stored.jobs + len(handles), batch[-1].number)
                _tell(handles, as_json=as_json, wait=wait, is_one=False)
                told(len(handles))
                kept += handles if wait else ()
                if conflict is not None:
                    line = batch[conflict.ids.index(None)].number
                    conflict.__notes__ = [f"It is line {line}.", stored.told()]
                    raise conflict
    except UsageError as error:
        error.__notes__ = [replace(stored, under_way=0).told()]
        raise
    except (EngineError, OSError) as error:
        error.__notes__ = [stored.told()]
        raise
    except KeyboardInterrupt:
        say(stored.told())
        raise
    if not stored.jobs:
        say("The input contains no jobs.")
    return kept


def _check_tasks(check: Callable[[str], None], batch: Sequence[InputLine]) -> None:
    for line in batch:
        with named(line.number):
            check(line.call.task)


def _store_batch(
    store: Penstock, batch: Sequence[InputLine]
) -> tuple[list[Handle[Any]], IdConflict | None]:
    """The jobs that are stored; and why not all are, if jobs of other tasks have their ids."""
    try:
        return store.enqueue_many(line.call for line in batch), None
    except IdConflict as error:
        return [store.job(id) for id in error.ids if id is not None], error
    except BadItem as error:
        with named(batch[error.index].number):
            raise


def _tell(handles: Sequence[Handle[Any]], *, as_json: bool, wait: bool, is_one: bool) -> None:
    """Print the ids, unless the results will be printed with them."""
    for handle in handles:
        if not handle.created and not as_json:
            say(f"Job {handle.id} already exists with the same {_WHAT[handle.because]}.")
        if wait:
            continue
        if not as_json:
            print_line(handle.id)
        elif is_one:
            print_json(_record(handle))
        else:
            print_json_line(_record(handle))


def _wait(
    store: Penstock, handle: Handle[Any], limit: float | None, *, as_json: bool, is_one: bool
) -> None:
    if not as_json:
        say(f"Waiting for job {handle.id}; Ctrl-C stops waiting, the job continues.")
    handle.result(limit)
    result = msgspec.Raw(stored_job(store, handle.id).result or b"null")
    if not as_json:
        print_block(msgspec.json.format(bytes(result), indent=2).decode())
    elif is_one:
        print_json({**_record(handle), "result": result})
    else:
        print_json_line({**_record(handle), "result": result})


def _record(handle: Handle[Any]) -> dict[str, Any]:
    return {"id": handle.id, "created": handle.created, "because": handle.because}
