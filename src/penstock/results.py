"""Wait for the results of many jobs: all of them in order, or each as it comes.

Each step asks for all jobs that are still awaited with one call, and takes all that have ended: so
there is nothing to clean up where a caller stops half-way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Generic, Literal, TypeVar, overload

from penstock.clock import SystemClock
from penstock.core import job as stored
from penstock.core.units import Duration, seconds
from penstock.errors import BadOption, JobError
from penstock.handle import Handle, refuse_on_loop
from penstock.loop_thread import Work
from penstock.sync import Facade

R = TypeVar("R")

Ended = dict[str, stored.Job | None]


@overload
def gather(
    handles: Iterable[Handle[R]],
    *,
    timeout: Duration | None = None,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...
@overload
def gather(
    handles: Iterable[Handle[R]],
    *,
    timeout: Duration | None = None,
    return_exceptions: Literal[True],
) -> list[R | JobError]: ...
def gather(
    handles: Iterable[Handle[R]],
    *,
    timeout: Duration | None = None,
    return_exceptions: bool = False,
) -> list[Any]:
    """Wait until all these jobs have ended, and return their results in the order of the handles.

    On failure: what ``result()`` raises for the first job that did not succeed, as soon as that is
    known; the others go on. With ``return_exceptions``, such errors stand in the list instead.
    ``ResultTimeout`` if not all have ended after ``timeout``.
    """
    refuse_on_loop("gather")
    group = _Group(handles, timeout)
    while group.ids:
        group.take(group.facade.call(group.look(), what="gather"), return_exceptions)
    return group.results()


@overload
async def agather(
    handles: Iterable[Handle[R]],
    *,
    timeout: Duration | None = None,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...
@overload
async def agather(
    handles: Iterable[Handle[R]],
    *,
    timeout: Duration | None = None,
    return_exceptions: Literal[True],
) -> list[R | JobError]: ...
async def agather(
    handles: Iterable[Handle[R]],
    *,
    timeout: Duration | None = None,
    return_exceptions: bool = False,
) -> list[Any]:
    """The same, awaited."""
    group = _Group(handles, timeout)
    while group.ids:
        group.take(await group.facade.ask(group.look(), what="agather"), return_exceptions)
    return group.results()


def as_completed(handles: Iterable[Handle[R]], *, timeout: Duration | None = None) -> Completed[R]:
    """Each handle as soon as its job has ended: ``for handle in as_completed(handles): ...``.

    Also for ``async for``. A job that failed, was cancelled or is not there any more has ended as
    well: its ``result()`` says so. On failure: ``ResultTimeout`` if not all have ended ``timeout``
    after the loop began.
    """
    return Completed(list(handles), timeout)


class Completed(Generic[R]):
    """What ``as_completed`` returns."""

    def __init__(self, handles: list[Handle[R]], timeout: Duration | None) -> None:
        self._handles = handles
        self._timeout = timeout
        _Group(handles, timeout)  # what is wrong with them is said here

    def __iter__(self) -> Iterator[Handle[R]]:
        refuse_on_loop("as_completed")
        group = _Group(self._handles, self._timeout)
        while group.ids:
            ended = group.facade.call(group.look(), what="as_completed")
            yield from group.leave(ended)

    async def __aiter__(self) -> AsyncIterator[Handle[R]]:
        group = _Group(self._handles, self._timeout)
        while group.ids:
            ended = await group.facade.ask(group.look(), what="as_completed")
            for handle in group.leave(ended):
                yield handle


class _Group(Generic[R]):
    """The handles of one call, and which of their jobs are still awaited."""

    def __init__(self, handles: Iterable[Handle[R]], timeout: Duration | None) -> None:
        self._handles = list(handles)
        for each in self._handles:
            if not isinstance(each, Handle):
                raise BadOption("handles", each, "give handles, as enqueue returns them")
            if each._facade is not self._handles[0]._facade:
                why = "it belongs to another app; wait for the jobs of each app by themselves"
                raise BadOption("handles", each, why)
        self._timeout = None if timeout is None else seconds(timeout, name="timeout")
        self._ends_at = None if self._timeout is None else SystemClock.monotonic() + self._timeout
        self._ended: dict[str, R | JobError] = {}
        self.ids = dict.fromkeys(each.id for each in self._handles)
        """Those of the jobs that are awaited."""

    @property
    def facade(self) -> Facade:
        """The way to the store."""
        return self._handles[0]._facade

    def look(self) -> Work[Ended]:
        """The next call: wait until at least one has ended."""
        ids, left = tuple(self.ids), None
        if self._ends_at is not None:
            left = max(0.0, self._ends_at - SystemClock.monotonic())
        return lambda client: client.ended(ids, left, self._timeout)

    def leave(self, ended: Ended) -> list[Handle[R]]:
        """The handles of these jobs, which are awaited no more."""
        for id in ended:
            del self.ids[id]
        return [each for each in self._handles if each.id in ended]

    def take(self, ended: Ended, return_exceptions: bool) -> None:
        """Keep what came of these jobs. On failure: what it was, unless that is to be kept."""
        for handle in self.leave(ended):
            try:
                self._ended[handle.id] = handle._returned(ended[handle.id])
            except JobError as error:
                if not return_exceptions:
                    raise
                self._ended[handle.id] = error

    def results(self) -> list[R | JobError]:
        """What came of all, in the order of the handles."""
        return [self._ended[each.id] for each in self._handles]
