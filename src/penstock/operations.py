"""What an operator does to a store, from any process: look, pause, retry, cancel, purge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from penstock.client import Client
from penstock.core.job import WAITING, Hold, State
from penstock.core.units import Duration, seconds
from penstock.engines import changes, reads
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Control,
    Count,
    Filter,
    Page,
    QueueSettings,
    WorkerInfo,
)
from penstock.errors import BadOption
from penstock.handle import BY_A_PERSON, LONGEST_REASON
from penstock.options import instant, several, word
from penstock.sync import Facade, blocking

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.core.finding import Finding
    from penstock.explain import Explanation
    from penstock.stores import StoreSource
    from penstock.task import Sender

Names = str | Iterable[str]
E = TypeVar("E", bound=StrEnum)

LONGEST_NOTE: Final = 1000
PAGE: Final = 500
MOST: Final = 1_000_000
"""Jobs on one page."""

Told = Callable[[int], object]
"""Hears of each step of something long how many jobs it was about."""


class Which(TypedDict, total=False):
    """Which jobs: one word or several per field; any of them fits, and all fields must."""

    id: Names
    state: Names
    queue: Names
    task: Names
    key: Names
    hold: Names
    tag: str
    correlation_id: str
    since: datetime | float
    """Enqueued then or later: an aware datetime, or seconds since 1970."""
    until: datetime | float
    """Enqueued before then."""


class QueueChanges(TypedDict, total=False):
    """What may be decided about a queue; what is not given stays as it is."""

    paused: bool
    note: str | None
    max_running: int | None
    ordered: bool
    fair: bool
    weights: Mapping[str, float]


class Operations:
    """The verbs on a store as a whole. Each has an async form, whose name begins with ``a``."""

    settings: Settings
    _facade: Facade
    _source: StoreSource
    _tasks: dict[str, Sender[..., Any]]

    async def aset_queue(self, queue: str, **changes: Unpack[QueueChanges]) -> QueueSettings:
        """Change what is decided about a queue; return all of it.

        ``max_running`` attempts of it run at once, over all workers. An ``ordered`` queue runs one
        job after the other: while one waits for its retry, so do all behind it. A ``fair`` one is
        shared between keys, by their ``weights``.
        """
        word("queue", queue)
        _check(changes)
        queues = await self._facade.ask(lambda client: reads.queues(client.engine))
        settings: QueueSettings = replace(queues.get(queue, QueueSettings()), **changes)
        await self._facade.ask(lambda client: client.engine.set_queue(queue, settings))
        return settings

    async def apause(self, queue: str, note: str | None = None) -> None:
        """Let no worker take jobs of this queue; ``note`` tells the next person why."""
        await self.aset_queue(queue, paused=True, note=note)

    async def aresume(self, queue: str) -> None:
        """Let workers take jobs of this queue again."""
        await self.aset_queue(queue, paused=False, note=None)

    # --- jobs ----------------------------------------------------------------------------------

    async def acancel_many(
        self, ids: Iterable[str], reason: str = BY_A_PERSON, *, told: Told | None = None
    ) -> list[Control]:
        """Cancel those of these jobs that wait, ask those that run to end; say what became of each.

        An id that the store does not know has no ``state`` in its answer.
        """
        word("reason", reason, LONGEST_REASON)
        return await self._each(partial(changes.cancel, reason=reason), ids, told)

    async def aretry_many(self, ids: Iterable[str], *, told: Told | None = None) -> list[Control]:
        """Send those of these jobs that failed or were cancelled back to run again, with all their
        retries; say what became of each.

        One that is not ``changed`` is in another state, is not known (no ``state``), or has a
        unique key that its ``owner`` has taken.
        """
        return await self._each(changes.retry, ids, told)

    async def acancel_all(
        self, reason: str = BY_A_PERSON, *, told: Told | None = None, **which: Unpack[Which]
    ) -> int:
        """Cancel every job that fits and has not ended; return how many were changed."""
        chosen = narrowed(which, WAITING | {State.RUNNING})
        word("reason", reason, LONGEST_REASON)
        return await self._all(partial(changes.cancel, reason=reason), chosen, told)

    async def aretry_all(self, *, told: Told | None = None, **which: Unpack[Which]) -> int:
        """Send every job that fits and failed back to run again; return how many were changed.

        Those that were cancelled are among them only if ``state`` says so.
        """
        chosen = narrowed(which, {State.FAILED})
        return await self._all(changes.retry, chosen, told)

    async def apurge(self, *, told: Told | None = None, **which: Unpack[Which]) -> int:
        """Delete the jobs that fit and do not run, all of them if nothing is said; return how many.

        Their ids stay in the ledger.
        """
        chosen = chosen_by(which)

        async def work(client: Client) -> int:
            engine, cursor, purged = client.engine, None, 0
            while True:
                some = await engine.purge(chosen, self.settings.upkeep_batch, cursor)
                purged += some.jobs
                if told is not None:
                    told(some.jobs)
                cursor = some.cursor
                if cursor is None:
                    return purged

        return await self._facade.ask(work)

    async def _each(
        self,
        verb: Callable[[Engine, Sequence[str]], Awaitable[list[Control]]],
        ids: Iterable[str],
        told: Told | None,
    ) -> list[Control]:
        named = [word("ids", id) for id in several("ids", ids)]

        async def work(client: Client) -> list[Control]:
            engine, answers = client.engine, list[Control]()
            step = engine.traits.max_batch
            for start in range(0, len(named), step):
                some = named[start : start + step]
                answers += await verb(engine, some)
                if told is not None:
                    told(len(some))
            return answers

        return await self._facade.ask(work)

    async def _all(
        self,
        verb: Callable[[Engine, Sequence[str]], Awaitable[list[Control]]],
        chosen: Filter,
        told: Told | None,
    ) -> int:
        """Page by page, so that each job is met once whatever becomes of it meanwhile."""

        async def work(client: Client) -> int:
            engine, cursor, changed = client.engine, None, 0
            while True:
                page = await engine.find(chosen, cursor, PAGE)
                answers = await verb(engine, [job.id for job in page.jobs])
                changed += sum(answer.changed for answer in answers)
                if told is not None:
                    told(len(page.jobs))
                cursor = page.cursor
                if cursor is None:
                    return changed

        return await self._facade.ask(work)

    async def afind(
        self, *, limit: int = 100, cursor: str | None = None, **which: Unpack[Which]
    ) -> Page:
        """Return some of the jobs that fit, newest first, from the ``cursor`` of a page on."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
            raise BadOption("limit", limit, f"give a whole number from 1 to {MOST}")
        if cursor is not None:
            word("cursor", cursor)
        chosen = chosen_by(which)
        return await self._facade.ask(lambda client: client.engine.find(chosen, cursor, limit))

    async def acount(self, **which: Unpack[Which]) -> int:
        """Return how many jobs fit."""
        chosen = chosen_by(which)
        return await self._facade.ask(lambda client: reads.count(client.engine, chosen))

    async def acounts(self) -> list[Count]:
        """Return how many jobs there are per queue, priority, state and hold."""
        return await self._facade.ask(lambda client: client.engine.counts(Filter()))

    async def anow(self) -> float:
        """Return the store's instant: the one that decides what is due."""
        return await self._facade.ask(lambda client: reads.now(client.engine))

    async def aqueues(self) -> dict[str, QueueSettings]:
        """Return every queue that has a setting or a job."""
        return await self._facade.ask(lambda client: reads.queues(client.engine))

    async def aworkers(self) -> list[WorkerInfo]:
        """Return every worker that has a lease."""
        return await self._facade.ask(lambda client: client.engine.workers())

    async def aexplain(self, id: str, *, watch: Duration = 0) -> Explanation:
        """Say why a job is where it is: every reason, the weightiest first, with what to do.

        Whether a worker that has a lease still lives cannot be seen at one look: ``watch`` is how
        long its beats may be watched, if that matters. A job that the store does not have is
        explained as well.
        """
        from penstock.explain import explain

        chosen, limit = word("id", id), seconds(watch, name="watch")
        return await self._facade.ask(lambda client: explain(client.engine, chosen, limit))

    async def adoctor(
        self, *, watch: Duration | None = None, thorough: bool = False, repair: bool = False
    ) -> tuple[Finding, ...]:
        """Look at the store, its workers and its queues; say what is found, and what to do.

        Nothing is changed, made or migrated, unless it is told to ``repair`` what a lost step may
        have left. ``watch`` is how long each worker may take to give a sign of life, by default a
        little longer than it should; ``thorough`` reads every page of the store.
        """
        from penstock.doctor import Expected, examine

        queues = {name: task.options.queue for name, task in self._tasks.items()}
        expected = Expected(self.settings.lease, self.settings.keep_finished, queues)
        limit = None if watch is None else seconds(watch, name="watch")
        return await examine(
            self._source.connect, expected, watch=limit, thorough=thorough, repair=repair
        )

    def doctor(
        self, *, watch: Duration | None = None, thorough: bool = False, repair: bool = False
    ) -> tuple[Finding, ...]:
        """The same, while this thread waits."""
        asked = self.adoctor(watch=watch, thorough=thorough, repair=repair)
        # Not on the façade's loop: that would open the store before it is examined.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, asked).result()

    explain = blocking(aexplain)
    set_queue = blocking(aset_queue)
    pause = blocking(apause)
    resume = blocking(aresume)
    cancel_many = blocking(acancel_many)
    retry_many = blocking(aretry_many)
    cancel_all = blocking(acancel_all)
    retry_all = blocking(aretry_all)
    purge = blocking(apurge)
    find = blocking(afind)
    count = blocking(acount)
    counts = blocking(acounts)
    now = blocking(anow)
    queues = blocking(aqueues)
    workers = blocking(aworkers)


def narrowed(which: Which, states: Set[State]) -> Filter:
    """The jobs that are meant and in one of these states, unless states are named."""
    chosen = chosen_by(which)
    return chosen if chosen.states else replace(chosen, states=tuple(sorted(states)))


def chosen_by(which: Which) -> Filter:
    """The filter that a caller's words mean."""
    given: dict[str, Any] = dict(which)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "id" | "queue" | "task" | "key":
                fields[f"{name}s"] = _words(name, value)
            case "state":
                fields["states"] = _members(State, name, value)
            case "hold":
                fields["holds"] = _members(Hold, name, value)
            case "tag" | "correlation_id":
                fields[name] = word(name, value)
            case "since" | "until":
                fields[name] = instant(name, value)
            case _:
                known = ", ".join(Which.__annotations__)
                raise BadOption(name, value, f"jobs are not found by this; there are {known}")
    return Filter(**fields)


def _words(name: str, value: Names) -> tuple[str, ...]:
    words = several(name, value)
    if not words:
        raise BadOption(name, value, "it is empty and nothing would fit; leave it out for all")
    return tuple(word(name, each) for each in words)


def _members(kind: type[E], name: str, value: Names) -> tuple[E, ...]:
    words = _words(name, value)
    try:
        return tuple(kind(each) for each in words)
    except ValueError:
        raise BadOption(name, value, f"give one or more of {', '.join(kind)}") from None


def _check(changes: QueueChanges) -> None:
    """Types and words; which numbers make sense ``QueueSettings`` says itself."""
    for name, value in changes.items():
        if name not in QueueChanges.__annotations__:
            known = ", ".join(QueueChanges.__annotations__)
            raise BadOption(name, value, f"no such setting; there are {known}")
        match name, value:
            case (("note" | "max_running"), None) | (("paused" | "ordered" | "fair"), bool()):
                pass
            case (("paused" | "ordered" | "fair"), _):
                raise BadOption(name, value, "give True or False")
            case "note", _:
                word(name, value, LONGEST_NOTE)
            case "max_running", _:
                _check_limit(value)
            case "weights", _:
                _check_weights(value)


def _check_limit(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        why = "give a whole number from 1; to let nothing run, pause the queue"
        raise BadOption("max_running", value, why)


def _check_weights(value: object) -> None:
    if not isinstance(value, Mapping):
        raise BadOption("weights", value, "give a dict with a number for each key")
    for key, weight in value.items():
        word("weights", key)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise BadOption("weights", {key: weight}, "give each key a number")
