"""The handle: what a caller can ask about one job, and do to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

from penstock.context import CURRENT
from penstock.core import job as stored
from penstock.core.job import Draft, State
from penstock.core.signature import Signature
from penstock.core.units import Duration, seconds
from penstock.engines import changes
from penstock.engines.records import Receipt
from penstock.errors import (
    IdConflict,
    JobCancelled,
    JobFailed,
    JobGone,
    JobUncommitted,
    UniqueConflict,
    Unpicklable,
    WrongState,
    WrongTask,
    WrongThread,
)
from penstock.job import Job, returned, shown
from penstock.options import word
from penstock.sync import Facade, blocking, is_on_a_loop

R_co = TypeVar("R_co", covariant=True)

BY_A_PERSON = "cancelled by a person"
LONGEST_REASON: Final = 1000


@dataclass(frozen=True, slots=True)
class Origin:
    """What all handles have in common that come from one task, or from an app."""

    facade: Facade
    signature_of: Callable[[str], Signature | None]
    """How a task is called, by its name; None: it is not declared here."""
    task: str | None = None
    """The task that these jobs are of; None: any."""
    is_borrowed: bool = False
    """The job is part of a transaction of the caller's."""


class Handle(Generic[R_co]):
    """A job in the store. Holds nothing open; every question is asked anew.

    ``created`` is false if nothing was enqueued because such a job was there already: ``because``
    is then "id" or "unique", and the handle is of that job. One with the same id is a job of the
    same task, whatever its arguments are.

    What was enqueued on a connection of the caller's is there once the transaction is committed;
    until then, ``JobUncommitted`` is raised where ``JobGone`` would be.
    """

    __slots__ = ("_origin", "_receipt")

    def __init__(self, origin: Origin, receipt: Receipt) -> None:
        # Two references and no more: there may be very many handles.
        self._origin = origin
        self._receipt = receipt

    @property
    def id(self) -> str:
        """The job's id."""
        return self._receipt.id

    @property
    def created(self) -> bool:
        """The job was stored by this call."""
        return self._receipt.created

    @property
    def because(self) -> Literal["id", "unique"] | None:
        """Why not, if it was not."""
        return self._receipt.because

    @property
    def _facade(self) -> Facade:
        return self._origin.facade

    def __reduce__(self) -> NoReturn:
        raise Unpicklable(repr(self), "pass its id, and make another there with app.job(id)")

    def __repr__(self) -> str:
        told = "" if self.created else f", was there already (same {self.because})"
        return f"<Handle {self.id}{told}>"

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job to end and return what the task returned.

        On failure: ``JobFailed`` with the remote traceback, ``JobCancelled``, ``JobGone``, or
        ``ResultTimeout`` (a ``TimeoutError``): the job goes on.
        """
        limit = None if timeout is None else seconds(timeout, name="timeout")
        refuse_on_loop("result")
        try:
            job = self._facade.call(lambda client: client.result(self.id, limit), what="result")
        except JobGone:
            raise self._gone() from None
        return self._returned(job)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """The same, awaited."""
        limit = None if timeout is None else seconds(timeout, name="timeout")
        ask = self._facade.ask
        try:
            job = await ask(lambda client: client.result(self.id, limit), what="aresult")
        except JobGone:
            raise self._gone() from None
        return self._returned(job)

    async def astatus(self) -> Job[R_co]:
        """Return the job as it is now; ``JobGone`` if the store does not know it."""
        (job,) = await self._facade.ask(lambda client: client.engine.get([self.id]))
        if job is None:
            raise self._gone()
        return shown(job, self._signature(job))

    async def acancel(self, reason: str = BY_A_PERSON) -> bool:
        """Cancel the job if it waits, ask it to end if it runs; say whether that changed anything.

        On failure: ``JobGone``.
        """
        word("reason", reason, LONGEST_REASON)
        (control,) = await self._facade.ask(
            lambda client: changes.cancel(client.engine, [self.id], reason)
        )
        if control.state is None:
            raise self._gone()
        return control.changed

    async def aretry(self) -> None:
        """Send a failed or cancelled job back to run again, with all its retries.

        On failure: ``WrongState``, ``JobGone``, or ``UniqueConflict`` if another job has its key.
        """
        (control,) = await self._facade.ask(lambda client: changes.retry(client.engine, [self.id]))
        if control.owner is not None:
            raise UniqueConflict(self.id, (await self.astatus()).unique or "", control.owner)
        if control.state is None:
            raise self._gone()
        if not control.changed:
            raise WrongState(self.id, "retry", control.state)

    status = blocking(astatus)
    cancel = blocking(acancel)
    retry = blocking(aretry)

    def _gone(self) -> JobGone:
        return (JobUncommitted if self._origin.is_borrowed else JobGone)(self.id)

    def _signature(self, job: stored.Job) -> Signature | None:
        """How the job's task is called. On failure: ``WrongTask``."""
        if self._origin.task not in (None, job.task):
            raise WrongTask(job.id, job.task, self._origin.task)
        return self._origin.signature_of(job.task)

    def _returned(self, job: stored.Job | None) -> R_co:
        """What came of a job that has ended, or is not there."""
        if job is None:
            raise self._gone()
        if job.state is State.FAILED:
            last = job.errors[-1] if job.errors else None
            reason = job.reason or (last.message if last else "no reason is known")
            raise JobFailed(job.id, reason, last.traceback if last else None)
        if job.state is State.CANCELLED:
            raise JobCancelled(job.id, job.reason or "no reason is known")
        result: R_co = returned(job.result, self._signature(job))
        return result


def refuse_on_loop(call: str) -> None:
    """Raise ``WrongThread`` where an async task would wait for other jobs and block its loop: they
    may wait for the very worker that this would stop.
    """
    if CURRENT.get(None) is not None and is_on_a_loop():
        raise WrongThread(call)


def handles(
    origin: Origin, drafts: Sequence[Draft], receipts: Sequence[Receipt]
) -> list[Handle[Any]]:
    """The handles of jobs that were enqueued together, in order.

    On failure: ``IdConflict`` for the first of them whose id a job of another task has.
    """
    wrong = [
        place
        for place, receipt in enumerate(receipts)
        if receipt.because == "id" and receipt.task != drafts[place].task
    ]
    if wrong:
        raise _conflict(drafts, receipts, wrong)
    return [Handle(origin, receipt) for receipt in receipts]


def _conflict(
    drafts: Sequence[Draft], receipts: Sequence[Receipt], wrong: Sequence[int]
) -> IdConflict:
    first, count = wrong[0], len(receipts)
    ids = tuple(None if place in wrong else each.id for place, each in enumerate(receipts))
    error = IdConflict(receipts[first].id, drafts[first].task, receipts[first].task or "", ids)
    if count > 1:
        places = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        error.add_note(
            f"not stored: item {places} of {count}, counted from 0; all others are, or were there "
            "already, and the error has their ids"
        )
    return error
