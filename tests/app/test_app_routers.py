"""Routers: tasks that are declared without an app, and are whole once one includes them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock import AsyncTask, Penstock, Router, Task
from penstock.errors import BadOption, BadTask, DuplicateTask, NotIncluded

MODULE = __name__


def declared() -> tuple[Router, Any, Any]:
    router = Router()

    @router.task
    def send(to: str) -> str:
        return f"to {to}"

    @router.task(name="later", queue="slow", retries=0)
    async def later(to: str) -> str:
        return f"later to {to}"

    return router, send, later


async def test_before_it_is_included_a_task_can_be_called_and_not_enqueued():
    router, send, later = declared()
    assert repr(router) == "<Router>"
    assert (send("ada"), await later("ada")) == ("to ada", "later to ada")
    assert isinstance(send, Task)
    assert isinstance(later, AsyncTask)
    assert repr(send) == f"<Task {MODULE}.declared.<locals>.send>"
    for use in (lambda: send.enqueue("ada"), lambda: send.using(queue="x"), lambda: send.name):
        with pytest.raises(NotIncluded, match="belongs to a Router that no app includes yet") as no:
            use()
        assert "app.include(router)" in str(no.value)
    assert not hasattr(send, "spec")


def test_an_app_that_includes_it_runs_its_tasks():
    router, send, later = declared()
    app = Penstock("memory://", routes={"later": "never", "*.send": "mail"})
    app.include(router)
    app.include(router)
    assert set(app.tasks) == {send.name, "later"}
    assert (send.options.queue, later.options.queue) == ("mail", "slow")
    with app.worker_thread():
        assert send.enqueue("ada").result(timeout=20) == "to ada"
        assert later.enqueue("ada").result(timeout=20) == "later to ada"
    app.close()


def test_a_task_that_is_declared_after_the_inclusion_is_whole_at_once():
    router, app = Router(), Penstock("memory://")
    app.include(router)

    @router.task(name="late")
    def late() -> None: ...

    assert list(app.tasks) == ["late"]
    assert app.tasks["late"] is late


def test_what_no_app_could_declare_is_refused_where_it_stands():
    def yields() -> Any:
        yield

    with pytest.raises(BadTask, match="it yields"):
        Router().task(yields)


def test_the_tasks_of_a_router_have_one_app():
    router, *_ = declared()
    Penstock("memory://").include(router)
    with pytest.raises(BadOption, match="its tasks have one app"):
        Penstock("memory://").include(router)
    with pytest.raises(BadOption, match=r"give a penstock.Router\(\)"):
        Penstock("memory://").include(declared)  # type: ignore[arg-type]


def test_a_name_that_the_app_has_is_refused():
    app = Penstock("memory://")

    @app.task(name="later")
    def mine() -> None: ...

    router, send, _ = declared()
    with pytest.raises(DuplicateTask):
        app.include(router)
    assert repr(router) == "<Router>"
    assert send.name in app.tasks


shared = Router()


@shared.task
def known() -> None: ...


def test_a_task_of_a_router_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(known)) is known
