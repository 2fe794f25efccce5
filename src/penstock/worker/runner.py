"""One attempt becomes one outcome: the handler is called, and whatever it does has a meaning.

| the handler                                  | the attempt is                                    |
|----------------------------------------------|---------------------------------------------------|
| returns a value                              | succeeded                                         |
| returns one that cannot be stored            | failed: trying again cannot help                  |
| raises, also SystemExit or CancelledError    | a failure: retry, or failed when the policy ends  |
| gets arguments that do not fit its signature | a failure: a newer worker may understand them     |
| gets a payload that is not a JSON object     | failed                                            |
| raises or returns Retry, Snooze, Cancel      | what they say; Retry obeys the policy's limit     |
| is stopped by us, or noticed that it should  | timeout, stall: a failure; cancel: cancelled;     |
| and returned                                 | shutdown: released; lease lost: dropped           |
| forks, and the fork returns, raises or waits | what the original says; the fork exits there      |
| is transactional                             | as its transaction: see ``transactional_tasks``   |

A task that runs at most once is never retried or released after its start.

A coroutine is stopped by cancellation, a thread by an exception (see ``interrupt``). Either may
take its time, and until then the attempt has not ended. Middleware and dependencies around a
handler are part of the attempt (see ``middleware``); without any, they cost it nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from random import random
from types import CoroutineType, coroutine
from typing import Any, Final, assert_never
from weakref import WeakSet

from msgspec.structs import replace

from penstock.context import CURRENT, Cancel, Retry, Signal, Snooze
from penstock.core.callbacks import has_ended
from penstock.core.job import SUCCEEDED, ErrorRecord, Outcome, OutcomeKind
from penstock.core.lifecycle import MAY_HAVE_RUN, failing_since, settled
from penstock.core.units import text
from penstock.errors import NotAnObject, TransactionEnded
from penstock.worker.error_record import error_record, message_of, summary_of
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.middleware import WrappedCall
from penstock.worker.transactional_tasks import stepped, transacted

ENDS: Final = frozenset({OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.CRASHED})
"""Outcomes that may lead to a callback."""

SHUT_DOWN: Final = "the worker shut down"

COPIED: Final = 70
"""How a fork exits that came back from its handler; EX_SOFTWARE of sysexits.h."""


class Runner:
    """Runs attempts, on a loop or in a thread. ``now`` is the store's instant, ``worker`` the
    worker's present id, ``chance`` a random number from 0 to 1.
    """

    def __init__(
        self,
        now: Callable[[], float],
        worker: Callable[[], str],
        chance: Callable[[], float] = random,
    ) -> None:
        self._now = now
        self._worker = worker
        self._chance = chance
        self.is_copied = False
        """This process is a fork of the one that the runner belongs to."""
        _runners.add(self)

    async def run(self, attempt: Attempt) -> Outcome | None:
        """Run an async handler; None: its outcome is not wanted."""
        if attempt.job.expires_at is not None and (early := self.prevented(attempt)) is not None:
            return early
        spec = attempt.spec
        if spec.need is not None and attempt.context.effect is None:
            return await transacted(attempt, lambda: self.run(attempt), self)
        wrapped: WrappedCall | None = None
        function: Callable[..., Any] = spec.function
        try:
            if spec.hooks.middleware or spec.signature.plan.steps:
                wrapped = WrappedCall(attempt, self.exit_if_forked)
                function, args, kwargs = wrapped.run, (), dict[str, Any]()
            else:
                args, kwargs = spec.signature.decode(attempt.job.payload, attempt.context)
            enter = _apart(attempt)
            handler = enter(function, *args, **kwargs)
            if type(handler) is not CoroutineType:
                handler = _coroutine(handler)
            try:
                future = enter(handler.send, None)
            except StopIteration as end:  # it has never waited
                value = end.value
            else:
                value = await _awaited(self, attempt, handler, enter, future)
            if self.is_copied:
                self.exit_if_forked()
        except BaseException as error:
            return self._raised(attempt, error, attempt.ending)
        if wrapped is not None:
            return self._passed(attempt, wrapped)
        if attempt.ending is None:
            return self._returned(attempt, value, None)
        if attempt.is_out_of_time:
            return self.ended(attempt)
        return self._returned(attempt, value, _heeded(attempt))

    def call(self, attempt: Attempt) -> Outcome | None:
        """Run a sync handler in this thread; None: its outcome is not wanted."""
        if attempt.job.expires_at is not None and (early := self.prevented(attempt)) is not None:
            return early
        spec = attempt.spec
        if spec.need is not None and attempt.context.effect is None:

            async def run() -> Outcome | None:
                return self.call(attempt)

            return stepped(transacted(attempt, run, self))
        variables = Variables()
        variables.run(CURRENT.set, attempt.context)
        if spec.hooks.middleware or spec.signature.plan.steps:
            wrapped = WrappedCall(attempt, self.exit_if_forked)
            variables.run(wrapped.run_sync)
            return self._passed(attempt, wrapped)
        try:
            args, kwargs = spec.signature.decode(attempt.job.payload, attempt.context)
            value = variables.run(attempt.guard.call, spec.function, args, kwargs)
            self.exit_if_forked()
        except BaseException as error:
            return self._raised(attempt, error, attempt.ending)
        return self._returned(attempt, value, _heeded(attempt))

    def exit_if_forked(self) -> None:
        """Never return in a fork that a handler has let come back: it has our connections and
        would go on as this worker.
        """
        if self.is_copied:
            os._exit(COPIED)

    # --- what it means -------------------------------------------------------------------------

    def prevented(self, attempt: Attempt) -> Outcome | None:
        """The outcome of an attempt that must not start any more; None: it may."""
        expires_at = attempt.job.expires_at
        if expires_at is not None and self._now() >= expires_at:
            return replace(attempt.outcome(OutcomeKind.EXPIRED), has_begun=False)
        return None

    def ended(self, attempt: Attempt) -> Outcome | None:
        """We stopped it: the outcome is the reason we had."""
        return self._ended(attempt, attempt.ending)

    def broke(self, attempt: Attempt, error: BaseException) -> Outcome | None:
        """What the handler runs in broke, under it or on the way to it."""
        return self._raised(attempt, error, attempt.ending)

    def followed(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        """The outcome with the callbacks that it leads to.

        One that cannot be made for a success lets the job fail, as a result does that cannot be
        stored: it must not look as if all had been done.
        """
        callbacks = attempt.spec.callbacks
        if callbacks is None or outcome.is_settled or outcome.then or outcome.kind not in ENDS:
            return outcome
        token = CURRENT.set(attempt.context)
        try:
            after = settled(attempt.job, outcome, self._now())
            then = callbacks.after(after) if has_ended(after) else ()
        except BaseException as error:
            if outcome.kind is SUCCEEDED:
                return self.followed(attempt, self._failed(attempt, error))
            return replace(outcome, reason=f"{outcome.reason}; then {summary_of(error)}")
        finally:
            CURRENT.reset(token)
        return replace(outcome, then=then) if then else outcome

    def undid(self, attempt: Attempt, error: Exception) -> Outcome | None:
        """Its transaction could not be committed. That the handler has ended it by itself would
        be so again, and what that commits would be there twice.
        """
        if attempt.ending is Ending.LOST:
            return None
        if isinstance(error, TransactionEnded):
            return self._failed(attempt, error)
        return self._failure(attempt, error)

    def _passed(self, attempt: Attempt, wrapped: WrappedCall) -> Outcome | None:
        error, wrapped.error = wrapped.error, None  # whose traceback leads back to the call
        if error is not None:
            return self._raised(attempt, error, wrapped.ending)
        return self._returned(attempt, wrapped.value, wrapped.ending)

    def _returned(self, attempt: Attempt, value: Any, ending: Ending | None) -> Outcome | None:
        """The handler came to its end: by itself, or because it heeded what it was asked."""
        try:
            is_signal = isinstance(value, Signal)
        except BaseException as error:  # a proxy asks what it stands for, and that may fail
            return self._raised(attempt, error, ending)
        if is_signal:
            return self._raised(attempt, value, ending)
        if attempt.ending is Ending.LOST:
            return None
        if ending is not None:
            return self._ended(attempt, ending)
        spec, job = attempt.spec, attempt.job
        try:
            result = None
            if spec.keep_result:
                result = spec.signature.encode_result(value, spec.max_result)
        except BaseException as error:
            return self._failed(attempt, error)
        return Outcome(job=job.id, claim=job.claim, kind=SUCCEEDED, result=result)

    def _raised(
        self, attempt: Attempt, error: BaseException, ending: Ending | None
    ) -> Outcome | None:
        """The handler, or the way to it, raised; or it returned a signal.

        Whatever a handler raises while we stop it, CancelledError or what a driver made of it, is
        our doing.
        """
        self.exit_if_forked()
        if attempt.ending is Ending.LOST:
            return None
        if ending is not None and not isinstance(error, Signal):
            return self._ended(attempt, ending)
        match error:
            case Snooze():
                return Outcome(
                    job=attempt.job.id,
                    claim=attempt.job.claim,
                    kind=OutcomeKind.SNOOZE,
                    delay=error.delay,
                    reason=message_of(error) or None,
                )
            case Cancel():
                return attempt.outcome(OutcomeKind.CANCELLED, message_of(error) or None)
            case NotAnObject():
                return self._failed(attempt, error)
            case _:
                return self._failure(attempt, error)

    def _ended(self, attempt: Attempt, ending: Ending | None) -> Outcome | None:
        match ending:
            case Ending.TIMEOUT:
                limit = text(attempt.spec.timeout or 0.0)
                return self._failure(attempt, TimeoutError(f"ran longer than its timeout, {limit}"))
            case Ending.STALL:
                limit = text(attempt.spec.stall or 0.0)
                return self._failure(attempt, TimeoutError(f"no sign of life for {limit}"))
            case Ending.CANCEL:
                return attempt.outcome(OutcomeKind.CANCELLED)
            case Ending.SHUTDOWN:
                if attempt.runs_once:
                    return attempt.outcome(OutcomeKind.FAILED, MAY_HAVE_RUN)
                return attempt.outcome(OutcomeKind.RELEASED, SHUT_DOWN)
            case Ending.LOST | None:
                return None
            case never:
                assert_never(never)

    def _failure(self, attempt: Attempt, error: BaseException) -> Outcome:
        """It counts against the retries: the policy says whether there is another, and the task
        how long there may be one.
        """
        if attempt.runs_once:
            return self._failed(attempt, error)
        spec, now = attempt.spec, self._now()
        try:
            delay = spec.policy.next(attempt.job.failures + 1, error, self._chance())
        except BaseException as trouble:
            outcome = self._failed(attempt, error)
            return replace(outcome, reason=f"{outcome.reason}; then {summary_of(trouble)}")
        if delay is None:
            return self._failed(attempt, error)
        if isinstance(error, Retry) and error.delay is not None:
            delay = error.delay
        if spec.retry_for is not None:
            until = failing_since(attempt.job, now) + spec.retry_for
            if now + delay > until:
                return self._failed(attempt, error)
        return self._bad(attempt, error, OutcomeKind.RETRY, delay)

    def _failed(self, attempt: Attempt, error: BaseException) -> Outcome:
        return self._bad(attempt, error, OutcomeKind.FAILED)

    def _bad(
        self, attempt: Attempt, error: BaseException, kind: OutcomeKind, delay: float = 0.0
    ) -> Outcome:
        job = attempt.job
        attempt.error = error
        redact = attempt.spec.redact
        record = error_record(error, job, self._now(), self._worker(), redact)
        return Outcome(
            job=job.id,
            claim=job.claim,
            kind=kind,
            reason=_said(error, record),
            delay=delay,
            error=record,
        )


# A fork copies every runner; only this list can tell the copies.
_runners: Final[WeakSet[Runner]] = WeakSet()


def _mark_copies() -> None:
    for runner in list(_runners):
        runner.is_copied = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_copies)


def _heeded(attempt: Attempt) -> Ending | None:
    """What the handler was asked and has noticed, if it returns now."""
    ending = attempt.ending
    return ending if ending is not None and attempt.context.has_noticed else None


def _said(error: BaseException, record: ErrorRecord) -> str:
    if isinstance(error, Retry):
        return record.message or "the task asked for a retry"
    return f"{record.kind}: {record.message}" if record.message else record.kind


def _apart(attempt: Attempt) -> Callable[..., Any]:
    """What calls a function so that its context variables are its own, without a task of its own.

    Slots are tasks that outlive their attempts: what one handler sets must not be seen by the next.
    """
    token = CURRENT.set(attempt.context)
    enter = copy_context().run
    CURRENT.reset(token)
    return enter


@coroutine
def _awaited(
    runner: Runner,
    attempt: Attempt,
    handler: Coroutine[Any, Any, Any],
    enter: Callable[..., Any],
    future: Any,
) -> Generator[Any, Any, Any]:
    """Await a coroutine that waits for ``future``, with the variables that ``enter`` has for it."""
    while True:
        runner.exit_if_forked()
        step: Callable[[Any], Any]
        try:
            sent: Any = yield future
            step = handler.send
        except BaseException as error:
            if attempt.is_abandoned:
                _close(handler)
                raise
            sent, step = error, handler.throw
        try:
            future = enter(step, sent)
        except StopIteration as end:
            return end.value


def _close(handler: Coroutine[Any, Any, Any]) -> None:
    """End a coroutine that ignored its cancellation; its outcome is not wanted."""
    try:
        handler.close()
    except BaseException:
        pass  # it awaits even now, or fails to clean up


def _coroutine(handler: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    return handler if asyncio.iscoroutine(handler) else _waits_for(handler)


async def _waits_for(handler: Awaitable[Any]) -> Any:
    return await handler
