"""``penstock tasks``: list the tasks that workers and the application know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.app import Penstock
from penstock.cli.output import AsJson, Column, print_json, print_table
from penstock.cli.program import group
from penstock.cli.prompts import say
from penstock.cli.store import AppName, Url, app_name, opened
from penstock.core.retry import Never
from penstock.core.spec import Spec
from penstock.core.units import text
from penstock.engines.records import WorkerInfo

LIST_EPILOG = """\
WORKERS is the number of workers that have the task. With --app (or PENSTOCK_APP), tasks of the
application are listed even if no worker has them, with their queue, timeout and retries. A task
that is not DECLARED is known to workers only: they run other code.

KIND is where a task runs: async on the event loop, sync in a thread, process in a child process.

Example: penstock tasks list --app shop:app
"""

_COLUMNS: Final = (
    Column("TASK", shrink=True),
    Column("KIND"),
    Column("WORKERS", align="right"),
    Column("DECLARED", optional=True),
    Column("QUEUE", shrink=True, optional=True),
    Column("TIMEOUT", align="right", optional=True),
    Column("RETRIES", align="right", optional=True),
)

app = group("tasks", "List the tasks that workers and the application know.")


@app.command("list", epilog=LIST_EPILOG)
def list_tasks(as_json: AsJson = False, name: AppName = None, url: Url = None) -> None:
    """List tasks by name."""
    with opened(name, url) as store:
        workers = store.workers()
    has_code = app_name(name, url) is not None
    names = {task for worker in workers for task in worker.tasks} | store.tasks.keys()
    records = [_record(task, workers, store, has_code) for task in sorted(names)]
    if as_json:
        print_json({"tasks": records})
        return
    print_table(_COLUMNS, [_row(each) for each in records])
    if not records:
        say("There are no tasks: no worker has one. Name an application with --app to see its own.")


def _record(
    task: str, workers: Sequence[WorkerInfo], store: Penstock, has_code: bool
) -> dict[str, Any]:
    kinds = [worker.kinds[task] for worker in workers if task in worker.kinds]
    known: dict[str, Any] = {
        "name": task,
        "kind": kinds[0] if kinds else None,
        "workers": sum(task in worker.tasks for worker in workers),
        "declared": task in store.tasks if has_code else None,
        "queue": None,
        "timeout": None,
        "retries": None,
    }
    sender = store.tasks.get(task)
    if sender is None:
        return known
    spec: Spec = sender.spec
    return {
        **known,
        "kind": spec.kind,
        "queue": sender.options.queue,
        "timeout": spec.timeout,
        "retries": 0 if isinstance(spec.policy, Never) else getattr(spec.policy, "retries", None),
    }


def _row(task: Mapping[str, Any]) -> Sequence[str]:
    declared = {None: "", True: "yes", False: "no"}[task["declared"]]
    return (
        task["name"],
        task["kind"] or "",
        str(task["workers"]),
        declared,
        task["queue"] or "",
        "" if task["timeout"] is None else text(task["timeout"]),
        _retries(task["retries"], is_known=task["queue"] is not None),
    )


def _retries(count: int | None, *, is_known: bool) -> str:
    """None of a task that is known: its policy decides from failure to failure."""
    if count is None:
        return "varies" if is_known else ""
    return str(count)
