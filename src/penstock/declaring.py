"""``@app.task`` and ``@router.task``: the same decorator, whose options are read in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from penstock.task import AsyncTask, Sender, Task, TaskOptions

P = ParamSpec("P")
R = TypeVar("R")


class Declare(Protocol):
    """``@app.task(...)``: makes a task of the function below it."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Declaring(ABC):
    """What tasks are declared on: an app, or a router that an app includes."""

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Declare a task: ``@app.task`` or ``@app.task(queue="mail", ...)`` above a function.

        On failure: ``DuplicateTask``, ``BadTask``, or the error of an option that does not fit.
        """
        if function is None:
            return partial(self._declare, options=options)
        return self._declare(function, options)

    @abstractmethod
    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Sender[..., Any]:
        """Make a task of a function."""
