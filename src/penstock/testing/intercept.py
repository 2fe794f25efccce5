"""Between an app and its store, while a test has put a sandbox there.

``SandboxEngine`` is the app's handle on the store: it notes what was enqueued, and does not wait
for results that no worker will bring. ``FacadeIntercept`` stands before the calls of the app's
façade, so that in the mode ``inline`` jobs run before the call that enqueued them returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.clock import Clock
from penstock.core.job import Change, Draft, Job, State, Verdict
from penstock.engines.engine import Engine
from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.engines.records import Ask, Exchange, News, Receipt, Rewrite, Rewritten
from penstock.sync import Facade
from penstock.testing.errors import NobodyRuns
from penstock.testing.faulty import Faulty
from penstock.testing.stepper import NAME_PREFIX

WAITS: Final = ("result", "aresult", "gather", "agather", "as_completed")
"""The calls that wait for other jobs, not for the store."""


@dataclass(frozen=True, slots=True)
class StoredDraft:
    """A job as it was enqueued."""

    draft: Draft
    at: float
    """The instant by the sandbox's clock."""


@dataclass(eq=False, slots=True)
class StoreLog:
    """What the handles of one sandbox have seen, and whom they tell."""

    on_failed: Callable[[str], None]
    """Told of each job of which the app was told that it failed."""
    on_cancelled: Callable[[str], None]
    """Told of each running job that was asked to end."""
    stored: list[StoredDraft] = field(default_factory=list)
    queues: dict[str, None] = field(default_factory=dict)
    """The queues that have had a job, in order."""
    is_interleaving: bool = False
    """Jobs run while a caller waits for a result."""

    def add(self, drafts: Sequence[Draft], receipts: Sequence[Receipt], at: float) -> None:
        """Some of these became jobs."""
        created = {each.id for each in receipts if each.created}
        for draft in drafts:
            if draft.id in created:
                self.queues[draft.queue] = None
                self.stored.append(StoredDraft(draft, at))


class WorkerEngine(MemoryEngine):
    """The handle of the sandbox's workers, which notes what follows the end of jobs."""

    def __init__(self, store: MemoryStore, clock: Clock, log: StoreLog) -> None:
        super().__init__(store, clock)
        self._log = log

    async def exchange(self, ask: Ask) -> Exchange:
        reply = await super().exchange(ask)
        drafts = [each for outcome in ask.outcomes for each in outcome.then]
        self._log.add(drafts, reply.followers, self.clock.now())
        return reply

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        answers = await super().rewrite(rewrites)
        for rewrite, answer in zip(rewrites, answers, strict=True):
            self._log.add(rewrite.then, answer.followers, self.clock.now())
        return answers


class SandboxEngine(Faulty):
    """One handle of the app; all share the faults of ``like``."""

    def __init__(self, inner: Engine, log: StoreLog, like: Faulty) -> None:
        super().__init__(inner, like)
        self._log = log
        self._got: tuple[object, Sequence[Job | None]] = (None, ())
        """The task that asked for jobs last, and what it got."""

    async def _enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        receipts = await super()._enqueue(drafts)
        self._log.add(drafts, receipts, self.clock.now())
        return receipts

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        jobs = await super().get(ids)
        self._got = (asyncio.current_task(), jobs)
        for job in jobs:
            if job is not None and job.state is State.FAILED:
                self._log.on_failed(job.id)
        return jobs

    async def listen(self, kind: News, seen: int, timeout: float) -> int:
        """Refuse to sleep until jobs end that no worker runs."""
        task, jobs = self._got
        if kind is News.DONE and task is asyncio.current_task():
            for job in jobs:
                if job is not None and not await self._may_end():
                    raise NobodyRuns(job.id, job.state)
        return await super().listen(kind, seen, timeout)

    async def _may_end(self) -> bool:
        """Jobs run while a caller waits, or the test has started a worker on this store."""
        if self._log.is_interleaving:
            return True
        return any(not each.id.startswith(NAME_PREFIX) for each in await self.inner.workers())

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[Rewritten]:
        answers = await super().rewrite(rewrites)
        for rewrite, answer in zip(rewrites, answers, strict=True):
            is_asked = rewrite.change is Change.CANCEL and answer.verdict is Verdict.DONE
            if is_asked and answer.job is not None and answer.job.state is State.RUNNING:
                self._log.on_cancelled(answer.job.id)
        return answers


class FacadeIntercept:
    """Stands before the calls of one façade, from ``begin`` to ``end``.

    ``run`` and ``arun`` run what the call has enqueued, where jobs run inline; ``run`` is told
    whether the call waits for a job. ``outside`` is called before a call to the store is awaited:
    between turns of an interleaving, that is a wait for something outside.
    """

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
        self._is_active = False

    def begin(self) -> None:
        """Take the place of the façade's own calls."""
        self._before = {name: getattr(self._facade, name) for name in ("call", "ask")}
        vars(self._facade).update(call=self.call, ask=self.ask)
        self._is_active = True

    def end(self) -> None:
        """Give them back. A later intercept that is still there passes our calls on unchanged."""
        self._is_active = False
        for name in self._before:
            found = vars(self._facade).pop(name, None)
            while isinstance(owner := getattr(found, "__self__", None), FacadeIntercept):
                if owner._is_active:
                    vars(self._facade)[name] = found
                    break
                found = owner._before[name]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Facade.call``."""
        if self._is_active and kwargs.get("what") in WAITS:
            self._run(True)
        answer = self._before["call"](*args, **kwargs)
        if self._is_active:
            self._run(False)
        return answer

    async def ask(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Facade.ask``."""
        thread = self._facade._thread
        if thread is not None and thread.is_here():  # a part of a call that came through ``call``
            return await self._before["ask"](*args, **kwargs)
        if self._is_active and kwargs.get("what") in WAITS:
            await self._arun()
        elif self._is_active:
            self._outside()
        answer = await self._before["ask"](*args, **kwargs)
        if self._is_active:
            await self._arun()
        return answer
