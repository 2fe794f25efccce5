"""An engine around any engine that fails when a test tells it to.

    engine = Faulty(MemoryEngine(MemoryStore(), clock))
    engine.fail("exchange", when="after")       # committed, but the reply is lost
    engine.refuse(lambda item: item.task == "bad")
    gate = engine.block("enqueue")              # the next call stops at the gate
    await gate.reached.wait(); ...; gate.open()
    engine.down(); ...; engine.up()
    assert engine.verbs == ["open", "enqueue"]

What is told for one verb is used up in order: each call takes the first delay, the first gate and
the first failure that are left, in this order. ``times=None`` means every call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any, Final, Literal, ParamSpec, TypeVar

from penstock.core.finding import Finding
from penstock.core.job import Draft, Job, Outcome, Verdict
from penstock.engines.engine import Answer as Told
from penstock.engines.engine import Engine
from penstock.engines.records import (
    Ask,
    Cell,
    Control,
    Count,
    Exchange,
    Filter,
    Glance,
    Hand,
    Mended,
    Page,
    Promoted,
    Pruned,
    Purged,
    QueueSettings,
    Receipt,
    Report,
    Schema,
    Sighting,
    Standing,
    Term,
    WorkerInfo,
)
from penstock.errors import BadOption, EngineUnavailable, ItemRefused

# --- script -------------------------------------------------------------------------------------
#
# What is still to go wrong on a store that a test controls, and what was called so far.
#
# What is told for one verb is used up in order: each call takes the first delay, the first gate and
# the first failure that are left.


When = Literal["before", "after"]
"""Before the inner engine is called, or after it committed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that came in, whatever became of it."""

    verb: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Where a call stops until the test lets it go on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a call stands at the gate."""
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let go who waits, and whoever comes later."""
        self._opened.set()

    async def _pass(self) -> None:
        self.reached.set()
        await self._opened.wait()


What = float | Gate | BaseException
"""A delay, a gate, a failure."""


@dataclass(slots=True, eq=False)
class Fault:
    """One thing to go wrong, and how often it still does."""

    what: What
    when: When
    times: float


class Script:
    """All of it, for one store."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refusals: list[Callable[[Any], bool]] = []
        self.is_down = False
        self._faults: defaultdict[str, list[Fault]] = defaultdict(list)

    def add(self, verb: str, what: What, when: When, times: int | None) -> None:
        """Let something go wrong so often; None: whenever the verb is called."""
        self._faults[verb].append(Fault(what, when, inf if times is None else times))

    def due(self, verb: str) -> list[Fault]:
        """Take the first delay, gate and failure that are left for this verb."""
        faults = self._faults[verb]
        firsts = (
            next((each for each in faults if isinstance(each.what, kind)), None)
            for kind in (float | int, Gate, BaseException)
        )
        due = [fault for fault in firsts if fault is not None]
        for fault in due:
            fault.times -= 1
        self._faults[verb] = [fault for fault in faults if fault.times > 0]
        return due

    def forgo(self) -> dict[str, int]:
        """Forget the faults that are still to come; say how many there were, by verb."""
        left = {
            verb: sum(1 if isinf(each.times) else int(each.times) for each in faults)
            for verb, faults in self._faults.items()
            if faults
        }
        self._faults.clear()
        return left


# --- faulty -------------------------------------------------------------------------------------


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

VERBS: Final = frozenset(
    name for name, value in vars(Engine).items() if inspect.iscoroutinefunction(value)
)


class Faulty(Engine):
    """A store whose faults are scripted; without any it behaves as the engine inside.

    Made ``like`` another handle, it shares that one's script.
    """

    def __init__(self, inner: Engine, like: Faulty | None = None) -> None:
        self.inner = inner
        self.traits = inner.traits
        self.clock = inner.clock
        self._script: Script = Script() if like is None else like._script
        self._gates: list[Gate] = [] if like is None else like._gates

    @property
    def calls(self) -> list[Call]:
        """Every call in the order they came in, also those that failed."""
        return self._script.calls

    @property
    def polls(self) -> Callable[[str | None], object]:
        """Who hears that the engine inside polls."""
        return self.inner.polls

    @polls.setter
    def polls(self, hears: Callable[[str | None], object]) -> None:
        self.inner.polls = hears

    # --- what a test does ----------------------------------------------------------------------

    def fail(
        self,
        verb: str,
        error: BaseException | None = None,
        *,
        when: When = "before",
        times: int | None = 1,
    ) -> None:
        """Let the next calls fail: before anything happened, or after it did (a lost reply)."""
        default = EngineUnavailable(self.traits.name, f"{verb} was cut {when} its commit")
        self._add(verb, error or default, when, times)

    def delay(
        self, verb: str, seconds: float, *, when: When = "before", times: int | None = 1
    ) -> None:
        """Let the next calls take longer, by the engine's clock."""
        self._add(verb, seconds, when, times)

    def block(self, verb: str, *, when: When = "before", times: int | None = 1) -> Gate:
        """Stop the next calls at a gate; the test opens it."""
        gate = Gate()
        self._add(verb, gate, when, times)
        self._gates.append(gate)
        return gate

    def refuse(self, predicate: Callable[[Any], bool]) -> None:
        """Refuse each batch that holds a draft or an outcome which fits, until ``clear``."""
        self._script.refusals.append(predicate)

    def down(self) -> None:
        """Be unreachable: each call fails, and those under way lose their reply."""
        self._script.is_down = True

    def up(self) -> None:
        """Be reachable again."""
        self._script.is_down = False

    @property
    def is_down(self) -> bool:
        """The test took it down."""
        return self._script.is_down

    def clear(self) -> None:
        """Forget every fault that is still to come; who stands at a gate goes on."""
        for gate in self._gates:
            gate.open()
        self._gates.clear()
        self._script.forgo()
        self._script.refusals.clear()
        self.up()

    def forgo(self) -> dict[str, int]:
        """Forget the faults that are still to come; say how many there were, by verb."""
        return self._script.forgo()

    @property
    def verbs(self) -> list[str]:
        """The names of all calls so far."""
        return [call.verb for call in self.calls]

    # --- how it comes about --------------------------------------------------------------------

    def _add(self, verb: str, what: What, when: When, times: int | None) -> None:
        if verb not in VERBS:
            raise BadOption("verb", verb, f"no such verb; use one of {', '.join(sorted(VERBS))}")
        self._script.add(verb, what, when, times)

    async def _call(
        self,
        verb: str,
        call: Callable[Arguments, Awaitable[Answer]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer:
        self.calls.append(Call(verb, args))
        faults = self._script.due(verb)
        await self._happen(verb, faults, "before")
        answer = await call(*args, **kwargs)
        await self._happen(verb, faults, "after")
        return answer

    async def _happen(self, verb: str, faults: Sequence[Fault], when: When) -> None:
        for fault in faults:
            if fault.when != when:
                continue
            match fault.what:
                case BaseException():
                    raise fault.what
                case Gate():
                    await fault.what._pass()
                case seconds:
                    await self.clock.sleep(seconds)
        if self._script.is_down and verb != "close":
            raise EngineUnavailable(self.traits.name, "the test took it down")

    def _check(self, items: Sequence[Draft | Outcome]) -> None:
        for item in items:
            if any(predicate(item) for predicate in self._script.refusals):
                id = item.id if isinstance(item, Draft) else item.job
                raise ItemRefused(self.traits.name, f"the test refuses {id}")

    async def _enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._check(drafts)
        return await self.inner.enqueue(drafts)

    async def _exchange(self, ask: Ask) -> Exchange:
        self._check(ask.outcomes)
        return await self.inner.exchange(ask)

    # --- the verbs -----------------------------------------------------------------------------

    async def open(self) -> None:
        await self._call("open", self.inner.open)

    async def close(self) -> None:
        await self._call("close", self.inner.close)

    async def migrate(self) -> int:
        return await self._call("migrate", self.inner.migrate)

    async def schema(self) -> Schema:
        return await self._call("schema", self.inner.schema)

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        return await self._call("checkup", self.inner.checkup, thorough=thorough)

    async def now(self) -> float:
        return await self._call("now", self.inner.now)

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await self._call("enqueue", self._enqueue, drafts)

    def pack(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """It asks the store nothing."""
        return self.inner.pack(drafts)

    def enqueue_now(self, drafts: Sequence[Draft], timeout: float | None) -> list[Receipt] | None:
        """There is no way past the script: callers come by ``enqueue``."""
        return None

    def enqueue_soon(self, draft: Draft, answer: Told) -> Callable[[], None] | None:
        """Nor here."""
        return None

    async def join(self, worker: WorkerInfo) -> None:
        await self._call("join", self.inner.join, worker)

    async def leave(self, worker: str) -> None:
        await self._call("leave", self.inner.leave, worker)

    async def beat(self, worker: str) -> None:
        await self._call("beat", self.inner.beat, worker)

    async def exchange(self, ask: Ask) -> Exchange:
        return await self._call("exchange", self._exchange, ask)

    async def held(self, worker: str) -> list[Job]:
        return await self._call("held", self.inner.held, worker)

    async def progress(self, worker: str, reports: Sequence[Report]) -> list[Verdict]:
        return await self._call("progress", self.inner.progress, worker, reports)

    async def look(self, ask: Ask) -> float | None:
        return await self._call("look", self.inner.look, ask)

    async def wait(self, ask: Ask, timeout: float) -> None:
        await self._call("wait", self.inner.wait, ask, timeout)

    async def cancel(self, ids: Sequence[str], reason: str) -> list[Control]:
        return await self._call("cancel", self.inner.cancel, ids, reason)

    async def retry(self, ids: Sequence[str]) -> list[Control]:
        return await self._call("retry", self.inner.retry, ids)

    async def purge(self, which: Filter, limit: int, cursor: str | None = None) -> Purged:
        return await self._call("purge", self.inner.purge, which, limit, cursor)

    async def set_queue(self, queue: str, settings: QueueSettings) -> None:
        await self._call("set_queue", self.inner.set_queue, queue, settings)

    async def queues(self) -> dict[str, QueueSettings]:
        return await self._call("queues", self.inner.queues)

    async def promote(self, limit: int) -> Promoted:
        return await self._call("promote", self.inner.promote, limit)

    async def rescue(self, dead: Sequence[Sighting], limit: int) -> list[Job]:
        return await self._call("rescue", self.inner.rescue, dead, limit)

    async def prune(self, keep: float, limit: int) -> Pruned:
        return await self._call("prune", self.inner.prune, keep, limit)

    async def mend(self, *, rehearse: bool = False) -> Mended:
        return await self._call("mend", self.inner.mend, rehearse=rehearse)

    async def tidy(self) -> float:
        return await self._call("tidy", self.inner.tidy)

    async def lead(self, candidate: str, ttl: float) -> Term | None:
        return await self._call("lead", self.inner.lead, candidate, ttl)

    async def resign(self, holder: str, epoch: int) -> None:
        await self._call("resign", self.inner.resign, holder, epoch)

    async def leader(self) -> Term | None:
        return await self._call("leader", self.inner.leader)

    async def cell(self, name: str) -> Cell:
        return await self._call("cell", self.inner.cell, name)

    async def set_cell(self, name: str, value: bytes | None, version: int) -> Cell | None:
        return await self._call("set_cell", self.inner.set_cell, name, value, version)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call("get", self.inner.get, ids)

    async def find(self, which: Filter, cursor: str | None, limit: int) -> Page:
        return await self._call("find", self.inner.find, which, cursor, limit)

    async def count(self, which: Filter) -> int:
        return await self._call("count", self.inner.count, which)

    async def counts(self) -> list[Count]:
        return await self._call("counts", self.inner.counts)

    async def loads(self, queues: Sequence[str]) -> Mapping[str, int]:
        return await self._call("loads", self.inner.loads, queues)

    async def glance(self, window: float, limit: int) -> Glance:
        return await self._call("glance", self.inner.glance, window, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._call("workers", self.inner.workers)

    async def hands(self) -> list[Hand]:
        return await self._call("hands", self.inner.hands)

    async def line(self, id: str) -> Standing:
        return await self._call("line", self.inner.line, id)

    async def results(self, ids: Sequence[str], timeout: float) -> dict[str, Job | None]:
        return await self._call("results", self.inner.results, ids, timeout)

    async def version(self) -> int:
        return await self._call("version", self.inner.version)

    async def listen(self, seen: int, timeout: float) -> int:
        return await self._call("listen", self.inner.listen, seen, timeout)
