"""One attempt in its transaction: begun before anything of it, ended after everything.

Middleware and dependencies (see ``middleware``) run between the two: they have cleaned up before
the job is settled, and if one of them raises, nothing of it is committed.

| the attempt is                       | the transaction is                                      |
|--------------------------------------|---------------------------------------------------------|
| succeeded                            | committed, with the job's end as its last statement     |
| succeeded, but lost to another       | rolled back: the other one's counts                     |
| anything else                        | rolled back, before the outcome is told                 |
| not begun, for the store is away     | none: it waits for ``PAUSE``, and no failure is counted |

It is written once, as coroutines. For a sync task nothing in it ever waits: a thread takes it to
its end in one step, and blocks where it has to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from penstock.core.job import Outcome, OutcomeKind
from penstock.errors import EngineUnavailable, NoTransaction
from penstock.worker.inflight import Attempt, Ending
from penstock.worker.middleware import absorb_cancellation

if TYPE_CHECKING:
    from penstock.worker.runner import Runner

PAUSE: Final = 1.0
"""Seconds that a job waits whose transaction could not begin."""

T = TypeVar("T")


async def transacted(
    attempt: Attempt, run: Callable[[], Awaitable[Outcome | None]], runner: Runner
) -> Outcome | None:
    """Run an attempt in its transaction; None: its outcome is not wanted."""
    early = await _begin(attempt, runner)
    effect = attempt.context.effect
    if effect is None:
        return early
    outcome = await run() if attempt.ending is None else runner.ended(attempt)
    attempt.is_cleaning = True
    if attempt.spec.is_async and not attempt.is_abandoned:
        await absorb_cancellation()
    if outcome is not None:
        outcome = runner.followed(attempt, outcome)
    if outcome is None or outcome.kind is not OutcomeKind.SUCCEEDED:
        await effect.undo(at_once=outcome is None or attempt.ending is Ending.SHUTDOWN)
        return outcome
    try:
        progress, note = attempt.context.progress_so_far
        is_ours = await effect.settle(
            outcome.result or b"null", progress=progress, note=note, then=outcome.then
        )
    except Exception as error:
        return runner.undid(attempt, error)
    except BaseException as error:  # its slot was abandoned
        return runner.broke(attempt, error)
    return replace(outcome, is_settled=True) if is_ours else None


async def _begin(attempt: Attempt, runner: Runner) -> Outcome | None:
    """Give it its transaction; or the outcome of an attempt that cannot have one now."""
    spec, context = attempt.spec, attempt.context
    effects = spec.hooks.stand_in or spec.hooks.effects
    attempt.is_held_up = True
    try:
        assert spec.need is not None
        if effects is None:
            raise NoTransaction(spec.name, "its app has no store that could give it one")
        context.effect = await effects.begin(attempt.job, spec.need)
    except EngineUnavailable as error:
        if attempt.ending is not None:
            return runner.ended(attempt)
        waits = attempt.outcome(OutcomeKind.SNOOZE, f"its transaction could not begin: {error}")
        return replace(waits, delay=PAUSE, has_begun=False)
    except BaseException as error:
        return runner.broke(attempt, error)
    finally:
        attempt.started_at = context.now()
        attempt.is_held_up = False
    return None


def stepped(work: Coroutine[Any, Any, T]) -> T:
    """Take a coroutine that never waits to its end, in this thread."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("something waited in the transaction of a sync task")
