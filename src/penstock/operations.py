"""What an operator does to a store, from any process: look, pause, purge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from penstock.core.job import Hold, State
from penstock.engines.records import Count, Filter, Page, QueueSettings, WorkerInfo
from penstock.errors import BadOption
from penstock.options import several, word
from penstock.sync import Facade, blocking

Names = str | Iterable[str]
E = TypeVar("E", bound=StrEnum)

LONGEST_NOTE: Final = 1000


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

    _facade: Facade

    async def aset_queue(self, queue: str, **changes: Unpack[QueueChanges]) -> QueueSettings:
        """Change what is decided about a queue; return all of it.

        ``max_running`` attempts of it run at once, over all workers. An ``ordered`` queue runs one
        job after the other: while one waits for its retry, so do all behind it. A ``fair`` one is
        shared between keys, by their ``weights``.
        """
        word("queue", queue)
        _check(changes)
        queues = await self._facade.ask(lambda client: client.engine.queues())
        settings: QueueSettings = replace(queues.get(queue, QueueSettings()), **changes)
        await self._facade.ask(lambda client: client.engine.set_queue(queue, settings))
        return settings

    async def apause(self, queue: str, note: str | None = None) -> None:
        """Let no worker take jobs of this queue; ``note`` tells the next person why."""
        await self.aset_queue(queue, paused=True, note=note)

    async def aresume(self, queue: str) -> None:
        """Let workers take jobs of this queue again."""
        await self.aset_queue(queue, paused=False, note=None)

    async def apurge(self, **which: Unpack[Which]) -> int:
        """Delete the jobs that fit and do not run, all of them if nothing is said; return how many.

        Their ids stay in the ledger.
        """
        chosen, purged = _filter(which), 0
        while some := await self._facade.ask(
            lambda client: client.engine.purge(chosen, client.engine.traits.max_batch)
        ):
            purged += some
        return purged

    async def afind(
        self, *, limit: int = 100, cursor: str | None = None, **which: Unpack[Which]
    ) -> Page:
        """Return some of the jobs that fit, newest first, from the ``cursor`` of a page on."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise BadOption("limit", limit, "give a whole number from 1")
        if cursor is not None:
            word("cursor", cursor)
        chosen = _filter(which)
        return await self._facade.ask(lambda client: client.engine.find(chosen, cursor, limit))

    async def acounts(self) -> list[Count]:
        """Return how many jobs there are per queue, state and hold."""
        return await self._facade.ask(lambda client: client.engine.counts())

    async def aqueues(self) -> dict[str, QueueSettings]:
        """Return every queue that has a setting or a job."""
        return await self._facade.ask(lambda client: client.engine.queues())

    async def aworkers(self) -> list[WorkerInfo]:
        """Return every worker that has a lease."""
        return await self._facade.ask(lambda client: client.engine.workers())

    set_queue = blocking(aset_queue)
    pause = blocking(apause)
    resume = blocking(aresume)
    purge = blocking(apurge)
    find = blocking(afind)
    counts = blocking(acounts)
    queues = blocking(aqueues)
    workers = blocking(aworkers)


def _filter(which: Which) -> Filter:
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
