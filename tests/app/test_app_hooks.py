"""Hooks and dependencies as an app's author declares them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import Context, Depends, Penstock, logs
from penstock.errors import BadArguments, BadHook, BadOption, BadTask


def session() -> Iterator[str]:
    yield "real"


async def fetch() -> str:
    return "fetched"


def work_off(app: Penstock) -> None:
    with app.worker_thread() as worker:
        worker.stop_when_empty()


# --- dependencies -------------------------------------------------------------------------------


def test_a_worker_makes_what_a_task_depends_on(memory):
    @memory.task
    def report(id: int, db: str = Depends(session)) -> str:
        return f"{id} from {db}"

    @memory.task
    async def collect(url: str = Depends(fetch), db: str = Depends(session)) -> str:
        return f"{url} into {db}"

    jobs = [report.enqueue(5), collect.enqueue()]
    work_off(memory)

    assert [job.result(timeout=60) for job in jobs] == ["5 from real", "fetched into real"]


def test_a_caller_cannot_pass_a_dependency(memory):
    @memory.task
    def report(id: int, db: str = Depends(session)) -> str:
        return db

    with pytest.raises(BadArguments, match="'db' is filled in by the worker; it takes"):
        report.enqueue(5, db="mine")
    with pytest.raises(BadArguments, match="'db' is filled in by the worker; it takes"):
        memory.enqueue(report.name, {"id": 5, "db": "mine"})


def test_options_of_the_arguments_do_not_see_dependencies(memory):
    @memory.task(key=lambda id: f"user-{id}")
    def report(id: int, db: str = Depends(session)) -> str:
        return db

    assert report.enqueue(5).status().key == "user-5"


def test_a_direct_call_passes_what_a_worker_would_make(memory):
    @memory.task
    def report(id: int, db: str = Depends(session)) -> str:
        return f"{id} from {db}"

    @memory.task
    async def collect(url: str = Depends(fetch)) -> str:
        return url

    assert report(5, db="mine") == report(5, "mine") == "5 from mine"
    assert asyncio.run(collect("mine")) == "mine"
    with pytest.raises(BadArguments) as caught:
        report(5)
    assert str(caught.value) == (
        f"{report.name}: 'db' is made by a worker, with test_app_hooks.session; in a direct call, "
        "pass it: db=..."
    )
    with pytest.raises(BadArguments, match="in a direct call, pass it: url=..."):
        asyncio.run(collect())


def test_a_sync_task_cannot_have_an_async_dependency(memory):
    def work(url: str = Depends(fetch)) -> None: ...

    with pytest.raises(BadTask) as caught:
        memory.task(name="work")(work)
    assert str(caught.value) == (
        "work cannot be a task: its dependency test_app_hooks.fetch is async and the task is not; "
        "make the task an async def, or the dependency a plain function"
    )
    assert "work" not in memory.tasks


def test_a_test_overrides_a_dependency_for_a_while(memory):
    @memory.task
    def report(db: str = Depends(session)) -> str:
        return db

    with memory.override(session, lambda: "fake"):
        with memory.override(session, lambda: "other"):
            inner = report.enqueue()
            work_off(memory)
        outer = report.enqueue()
        work_off(memory)
    after = report.enqueue()
    work_off(memory)

    assert [job.result(timeout=60) for job in (inner, outer, after)] == ["other", "fake", "real"]


def test_overrides_that_overlap_leave_nothing_behind(memory):
    first, second = (memory.override(session, lambda: "fake") for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert list(memory.hooks.overrides) == [session]
    second.__exit__(None, None, None)
    assert memory.hooks.overrides == {}


def test_what_cannot_be_called_is_no_override(memory):
    with pytest.raises(BadOption) as caught:
        memory.override(session, "fake")
    assert str(caught.value) == (
        "override='fake': give the function that makes a dependency, and the one to call instead"
    )


# --- hooks --------------------------------------------------------------------------------------


def test_decorators_give_the_function_back(memory):
    def start() -> None: ...

    async def stop() -> None: ...

    def wrap(ctx: Context) -> Iterator[None]:
        yield

    assert memory.startup(start) is start
    assert memory.shutdown(stop) is stop
    assert memory.middleware(wrap) is wrap


def test_what_cannot_be_a_hook_is_refused_at_its_declaration(memory):
    with pytest.raises(BadHook, match="None cannot be a start-up hook: it is not a function"):
        memory.startup(None)
    with pytest.raises(BadHook, match="cannot be a middleware: it does not yield"):
        memory.middleware(lambda ctx: None)


def test_middleware_wraps_the_tasks_of_its_app_only(memory):
    seen: list[str] = []

    @memory.task(name="mine")
    def mine() -> None: ...

    @memory.middleware  # declared after the task: it wraps it all the same
    def audited(ctx: Context) -> Iterator[None]:
        yield
        seen.append(ctx.task)

    with Penstock("memory://") as other:
        other.task(name="theirs")(mine.spec.function)
        for app, name in ((memory, "mine"), (other, "theirs")):
            app.enqueue(name)
            work_off(app)

    assert seen == ["mine"]


def test_start_up_and_shutdown_are_around_a_worker(memory):
    said: list[str] = []

    @memory.startup
    async def pool() -> AsyncIterator[None]:
        said.append("up")
        yield
        said.append("down")

    @memory.shutdown
    def last() -> None:
        said.append("last")

    @memory.task
    def work() -> None:
        said.append("work")

    work.enqueue()
    work_off(memory)

    assert said == ["up", "work", "last", "down"]


def test_a_start_up_that_raises_is_told_to_who_starts_the_worker(memory):
    @memory.startup
    def refuse() -> None:
        raise OSError("no database")

    @memory.task
    def work() -> None: ...

    with pytest.raises(OSError, match="no database"):
        memory.run_worker(until_empty=True)


def test_a_handlers_log_lines_tell_its_job(memory, caplog):
    @memory.task
    def work() -> None:
        logging.getLogger("shop").warning("low stock")

    job: Any = work.using(correlation_id="order-7").enqueue()
    work_off(memory)

    (record,) = [each for each in caplog.records if each.name == "shop"]
    line = json.loads(logs.JsonFormatter().format(record))
    assert (line["job"], line["attempt"], line["correlation_id"]) == (job.id, 1, "order-7")
    assert line["task"] == work.name
    assert not isinstance(logging.getLogRecordFactory(), logs._Factory)
