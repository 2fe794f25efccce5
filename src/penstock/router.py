"""A router: tasks of a package that knows no app.

    router = Router()                 # mail/tasks.py

    @router.task(queue="mail")
    def send(to: str) -> None: ...

    app.include(router)               # shop.py, where the app is made

The task is whole once an app includes its router, and from then on as if the app had declared it.
Before that it can be called, but not enqueued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.declaring import Declaring
from penstock.errors import BadOption
from penstock.task import AnyTask, Sender, TaskOptions, undeclared


class Router(Declaring):
    """Declares tasks with ``@router.task(...)``, which takes what ``@app.task(...)`` does, for the
    app that includes it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[AnyTask, TaskOptions]] = []
        self._app: object | None = None
        self._adopt: Callable[[AnyTask, TaskOptions], Sender[..., Any]] | None = None

    def __repr__(self) -> str:
        return "<Router>" if self._app is None else f"<Router of {self._app!r}>"

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Sender[..., Any]:
        task = undeclared(function, options)
        if self._adopt is None:
            self._waiting.append((task, options))
            return task
        return self._adopt(task, options)

    def join(self, app: object, adopt: Callable[[AnyTask, TaskOptions], Sender[..., Any]]) -> None:
        """Let an app adopt each task, now and later. The same app may say it twice."""
        if self._app is app:
            return
        if self._app is not None:
            why = f"it is part of {self._app!r}, and its tasks have one app; make a second router"
            raise BadOption("router", self, why)
        while self._waiting:
            task, options = self._waiting[0]
            adopt(task, options)
            del self._waiting[0]
        self._app, self._adopt = app, adopt
