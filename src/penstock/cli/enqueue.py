"""``penstock enqueue``: store jobs from a shell, one or a whole file of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from penstock.app import Penstock
from penstock.cli import completion
from penstock.cli.output import AsJson, print_block, print_json, print_json_line, print_line
from penstock.cli.prompts import progress, say
from penstock.cli.store import Url, check_shared, located, shared, stored_job
from penstock.core.units import seconds
from penstock.errors import BadArguments, BadItem, BadOption, EngineError, IdConflict, UsageError
from penstock.find_app import VARIABLE
from penstock.handle import Handle
from penstock.options import Call, EnqueueOptions, word

EPILOG = """\
Arguments are one JSON object, or NAME=TEXT and NAME:=JSON one by one. With - for the arguments,
the input has one such object a line. With - for the task, each line is an object with task, args
and any of the options, named as in Python: {"task": "shop.send", "args": {"to": "ada"}, "delay":
"5m"}.

With --app, the application checks that it has the task and that the arguments fit, and adds the
task's options. With --url alone, a job is stored by name without a check, and waits for a worker
that knows the task. The id of each job is printed; with --wait, its result.

Lines are stored a thousand at a time. If it ends early, it says how many are stored and with which
line to go on; lines with an id of their own may simply be given again.

A DURATION is written 500ms, 90s or 1h30m.

Exit codes: 0 it is stored, and with --wait it has succeeded; 1 the store did not take it, or with
--wait it did not succeed, or not in time; 2 it was called in a wrong way.

Example: penstock enqueue shop.send to=ada@example.com count:=3 --app shop:app --delay 5m
"""

_WHAT: Final[Mapping[str | None, str]] = MappingProxyType({"id": "id", "unique": "unique key"})
BATCH: Final = 1000
"""Lines that are stored at once."""
_HOW: Final = "give one JSON object, or NAME=TEXT and NAME:=JSON one by one"


def enqueue(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="The task, by its name; - reads jobs from the input.",
            autocompletion=completion.tasks,
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Its arguments: JSON, NAME=TEXT, NAME:=JSON, or -."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP", help="The application; else PENSTOCK_APP, unless --url is given."
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="The queue.", autocompletion=completion.queues),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(metavar="PRIORITY", help="high, normal, low, your own label, or a number."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to wait first.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When to run: 2026-11-16T03:20+00:00.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it may wait.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The tenant or resource it belongs to.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="An id of your own; twice does nothing."),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="While another job has this key, nothing is done."),
    ] = None,
    unique_scope: Annotated[
        str | None, typer.Option(metavar="task|app", help="Whose key it is: the task's, or all's.")
    ] = None,
    unique_until: Annotated[
        str | None, typer.Option(metavar="done|start", help="When the key is free again.")
    ] = None,
    unique_for: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long the key stays taken.")
    ] = None,
    at_most_once: Annotated[
        bool, typer.Option("--at-most-once", help="Rather not at all than twice.")
    ] = False,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="A tag; give it several times.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What people call this job.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="What it belongs to.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to wait at most.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Store jobs; print their ids."""
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
        "name": name,
        "correlation_id": correlation_id,
    }
    if timeout is not None and not wait:
        raise UsageError("--timeout says how long to wait; give --wait as well")
    limit = None if timeout is None else seconds(timeout, name="--timeout")
    with _application(app, url) as (store, check):
        if task == "-" or args == ["-"]:
            if task == "-" and args:
                raise UsageError("the lines of the input have the arguments; give none beside -")
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
    target: str | None, url: str | None
) -> Iterator[tuple[Penstock, Callable[[str], None]]]:
    """The named application, or one without tasks on the named store; and a check that refuses a
    task that the application does not have.
    """
    if target and url:
        raise UsageError("--app names a store of its own; give --app or --url")
    target = target or (None if url else os.environ.get(VARIABLE))
    with located(target) if target else shared(url) as app:
        check_shared(app)
        yield app, partial(_check_task, target, app.tasks) if target else lambda _: None


def _check_task(target: str, known: Iterable[str], task: str) -> None:
    """Refuse a job that no worker of the application would ever run."""
    if word("task", task) in known:
        return
    near = _nearest(task, known)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    why = f"{target} has no such task; {hint}--url alone stores a job by name, without a check"
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
        say("The input has no jobs.")
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
            say(f"Job {handle.id} was there already, with the same {_WHAT[handle.because]}.")
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
        say(f"Waiting for job {handle.id}; Ctrl-C leaves it to its worker.")
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


# --- reading calls -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputLine:
    """A call, and where it stands in the input."""

    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class StoredSoFar:
    """How far the input is stored: up to ``line``; perhaps also ``under_way`` more jobs."""

    jobs: int = 0
    line: int = 0
    under_way: int = 0

    def told(self) -> str:
        """How to go on from here, for a person."""
        some = f"{self.under_way:,}"
        if not self.jobs:
            return f"Perhaps the first {some} are stored." if self.under_way else "None is stored."
        done = f"The {self.jobs:,} up to line {self.line} are stored"
        if self.under_way:
            return f"{done}, perhaps also the {some} after."
        return f"{done}; to go on, leave them out: tail -n +{self.line + 1}"


def arguments(task: str, words: Sequence[str]) -> dict[str, Any]:
    """The arguments that words on a command line mean."""
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
        return _object(task, words[0])
    found: dict[str, Any] = {}
    for each in words:
        said, mark, value = each.partition("=")
        name = said.removesuffix(":")
        if not mark or not name:
            raise BadArguments(task, f"{each!r} is not an argument; {_HOW}")
        if name in found:
            raise BadArguments(task, f"{name!r} is given twice")
        found[name] = value if said == name else _json(task, said, value)
    return found


def options_of(given: Mapping[str, Any]) -> EnqueueOptions:
    """Options whose values are text, as the library takes them."""
    chosen = {name: value for name, value in given.items() if value is not None}
    priority = chosen.get("priority")
    if isinstance(priority, str) and priority.removeprefix("-").isdecimal():
        chosen["priority"] = int(priority)
    if isinstance(chosen.get("run_at"), str):
        chosen["run_at"] = _time(chosen["run_at"])
    return cast(EnqueueOptions, chosen)


def batches(
    lines: Iterable[str], task: str | None, given: Mapping[str, Any]
) -> Iterator[list[InputLine]]:
    """The calls that lines of JSON mean, some at a time; ``given`` holds where a line says nothing.

    With a ``task``, a line is its arguments; without, it names one. Empty lines mean nothing.
    """
    batch: list[InputLine] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        with named(number):
            batch.append(InputLine(number, _call(text, task, given)))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def named(number: int) -> Iterator[None]:
    """Let an error say which line is wrong."""
    try:
        yield
    except UsageError as error:
        why = error.error if isinstance(error, BadItem) else error
        raise UsageError(f"line {number} is wrong: {why}") from error


def _call(text: str, task: str | None, given: Mapping[str, Any]) -> Call:
    said = _object(task or "a line", text)
    if task is not None:
        return Call(task, said, options_of(given))
    named, args = said.pop("task", None), said.pop("args", None)
    if not isinstance(named, str):
        why = 'it names no task; write {"task": "shop.send", "args": {...}}'
        raise BadArguments("a line", why)
    if not isinstance(args, dict | None):
        raise BadArguments(named, f"args is not a JSON object, but {args!r}")
    return Call(named, args, options_of({**given, **said}))


def _object(task: str, text: str) -> dict[str, Any]:
    found = _json(task, "", text)
    if not isinstance(found, dict):
        raise BadArguments(
            task, f"{text.strip()!r} is not a JSON object; arguments go by their names"
        )
    return found


def _json(task: str, name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = f"{name}={text}" if name else text.strip()
        raise BadArguments(task, f"{at!r} is not JSON: {error}; {_HOW}") from None


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        why = "give a date and time, such as 2026-11-16T03:20+00:00"
        raise BadOption("run_at", text, why) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
