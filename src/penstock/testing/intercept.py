"""The handle that an app has in a sandbox: it keeps what was enqueued, and waits for nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.job import Draft, Job, State
from penstock.engines.engine import Engine
from penstock.engines.records import Control, Receipt
from penstock.sync import Facade
from penstock.testing.errors import NobodyRuns
from penstock.testing.faulty import Faulty
from penstock.testing.stepper import NAME


@dataclass(frozen=True, slots=True)
class Stored:
    """A job as it was enqueued."""

    draft: Draft
    at: float
    """The instant by the sandbox's clock."""


@dataclass(eq=False, slots=True)
class Watch:
    """What the handles of one sandbox share."""

    failed: Callable[[str], None]
    """Told of each job whose failure the test was told by its handle."""
    cancelled: Callable[[str], None]
    """Told of each running job that was asked to end."""
    stored: list[Stored] = field(default_factory=list)
    queues: dict[str, None] = field(default_factory=dict)
    """The queues that have had a job, in order."""
    has_company: bool = False
    """Others run while somebody waits."""


class Front(Faulty):
    """One such handle; faults are scripted for all of them at once."""

    def __init__(self, inner: Engine, watch: Watch, like: Faulty | None) -> None:
        super().__init__(inner, like)
        self._watch = watch

    async def _enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        receipts = await super()._enqueue(drafts)
        now = self.clock.now()
        for draft, receipt in zip(drafts, receipts, strict=True):
            if receipt.created:
                self._watch.queues[draft.queue] = None
                self._watch.stored.append(Stored(draft, now))
        return receipts

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        company = self._watch.has_company or await self._has_workers()
        ended = await super().results(ids, timeout if company else 0.0)
        for id, job in ended.items():
            if job is not None and job.state is State.FAILED:
                self._watch.failed(id)
        if not ended and not company:
            for job in await self.inner.get(ids):
                if job is not None:
                    raise NobodyRuns(job.id, job.state)
        return ended

    async def _has_workers(self) -> bool:
        """Somebody has started a worker of their own on this store."""
        return any(not each.id.startswith(NAME) for each in await self.inner.workers())

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        controls = await super().cancel(ids, reason)
        for control in controls:
            if control.changed and control.state is State.RUNNING:
                self._watch.cancelled(control.id)
        return controls


# --- inline -------------------------------------------------------------------------------------
#
# The ways from an app to its store, while a test has put a sandbox there.
#
# Each call is made as it always is. In the mode ``inline`` jobs that it has enqueued run before it
# returns: not where an attempt runs already, for they run when that one has ended. Between turns of
# an interleaving, a call to the store counts as a wait for something outside.


WAITS: Final = ("result", "aresult")
"""The calls that wait for other jobs, not for the store."""


class Detour:
    """Stands before the calls of one façade, from ``begin`` to ``end``."""

    def __init__(
        self,
        facade: Facade,
        *,
        outside: Callable[[], None],
        run: Callable[[bool], None],
        arun: Callable[[], Awaitable[None]],
    ) -> None:
        self._facade = facade
        self._outside = outside
        self._run = run
        self._arun = arun
        self._before: dict[str, Any] = {}
        self._is_here = False

    def begin(self) -> None:
        """Stand before the calls."""
        self._before = {name: getattr(self._facade, name) for name in ("call", "ask")}
        vars(self._facade).update(call=self.call, ask=self.ask)
        self._is_here = True

    def end(self) -> None:
        """Step aside: one that came later and is still there finds us silent."""
        self._is_here = False
        for name in self._before:
            found = vars(self._facade).pop(name, None)
            while isinstance(owner := getattr(found, "__self__", None), Detour):
                if owner._is_here:
                    vars(self._facade)[name] = found
                    break
                found = owner._before[name]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Facade.call``."""
        if self._is_here and kwargs.get("what") in WAITS:
            self._run(True)
        answer = self._before["call"](*args, **kwargs)
        if self._is_here:
            self._run(False)
        return answer

    async def ask(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Facade.ask``."""
        thread = self._facade._thread
        if thread is not None and thread.is_here():  # a part of a call made elsewhere
            return await self._before["ask"](*args, **kwargs)
        if self._is_here and kwargs.get("what") in WAITS:
            await self._arun()
        elif self._is_here:
            self._outside()
        answer = await self._before["ask"](*args, **kwargs)
        if self._is_here:
            await self._arun()
        return answer
