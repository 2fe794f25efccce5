"""An engine around any engine that fails when a test tells it to.

    engine = Faulty(MemoryEngine(MemoryStore(), clock))
    engine.fail("exchange", when="after")       # committed, but the reply is lost
    engine.refuse(lambda item: item.task == "bad")
    gate = engine.block("enqueue")              # the next call stops at the gate
    await gate.reached.wait(); ...; gate.open()
    engine.down(); ...; engine.up()
    assert engine.verbs == ["open", "enqueue"]

The faults of one verb are used up in order: each call takes the first delay, the first gate and the
first failure that are left, in this order. ``times=None`` means every call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any, Final, Literal

from penstock.core.job import Draft, Outcome
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange, Receipt
from penstock.engines.wrapper import Arguments, EngineWrapper, Result
from penstock.errors import BadOption, EngineUnavailable, ItemRefused

When = Literal["before", "after"]
"""Before the inner engine is called, or after it committed."""

VERBS: Final = frozenset(
    name for name, value in vars(Engine).items() if inspect.iscoroutinefunction(value)
)


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One call of a verb, whether it failed or not."""

    verb: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CallGate:
    """Where a call stops until the test lets it go on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a call stands at the gate."""
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let the calls at the gate go on, and all later ones."""
        self._opened.set()

    async def _pass(self) -> None:
        self.reached.set()
        await self._opened.wait()


@dataclass(slots=True, eq=False)
class VerbFault:
    """One thing to go wrong with calls of a verb, and how often it still does."""

    what: float | CallGate | BaseException
    """A delay in seconds, a gate, or what is raised."""
    when: When
    times: float


class VerbFaults:
    """The faults to come on one store, and the calls so far; shared by its handles."""

    def __init__(self) -> None:
        self.calls: list[EngineCall] = []
        self.refusals: list[Callable[[Any], bool]] = []
        self.is_down = False
        self.gates: list[CallGate] = []
        self._faults: defaultdict[str, list[VerbFault]] = defaultdict(list)

    def add(
        self, verb: str, what: float | CallGate | BaseException, when: When, times: int | None
    ) -> None:
        if verb not in VERBS:
            raise BadOption("verb", verb, f"no such verb; use one of {', '.join(sorted(VERBS))}")
        self._faults[verb].append(VerbFault(what, when, inf if times is None else times))

    def take(self, verb: str) -> list[VerbFault]:
        """Take the first delay, gate and failure that are left for this verb."""
        faults = self._faults[verb]
        firsts = (
            next((each for each in faults if isinstance(each.what, kind)), None)
            for kind in (float | int, CallGate, BaseException)
        )
        taken = [fault for fault in firsts if fault is not None]
        for fault in taken:
            fault.times -= 1
        self._faults[verb] = [fault for fault in faults if fault.times > 0]
        return taken

    def clear(self) -> dict[str, int]:
        """Forget the faults that are still to come; say how many there were, by verb."""
        left = {
            verb: sum(1 if isinf(each.times) else int(each.times) for each in faults)
            for verb, faults in self._faults.items()
            if faults
        }
        self._faults.clear()
        return left


class Faulty(EngineWrapper):
    """A store whose faults a test decides; without any it behaves as the engine inside.

    Made ``like`` another handle, it shares that one's faults and calls.
    """

    def __init__(self, inner: Engine, like: Faulty | None = None) -> None:
        super().__init__(inner)
        self._faults: VerbFaults = VerbFaults() if like is None else like._faults

    @property
    def calls(self) -> list[EngineCall]:
        """Every call in the order they came in, also those that failed."""
        return self._faults.calls

    @property
    def verbs(self) -> list[str]:
        """The names of all calls so far."""
        return [call.verb for call in self.calls]

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
        self._faults.add(verb, error or default, when, times)

    def delay(
        self, verb: str, seconds: float, *, when: When = "before", times: int | None = 1
    ) -> None:
        """Let the next calls take longer, by the engine's clock."""
        self._faults.add(verb, seconds, when, times)

    def block(self, verb: str, *, when: When = "before", times: int | None = 1) -> CallGate:
        """Stop the next calls at a gate; the test opens it."""
        gate = CallGate()
        self._faults.add(verb, gate, when, times)
        self._faults.gates.append(gate)
        return gate

    def refuse(self, predicate: Callable[[Any], bool]) -> None:
        """Refuse each batch that holds a draft or an outcome which fits, until ``clear``."""
        self._faults.refusals.append(predicate)

    def down(self) -> None:
        """Be unreachable: each call fails, and those under way lose their reply."""
        self._faults.is_down = True

    def up(self) -> None:
        """Be reachable again."""
        self._faults.is_down = False

    @property
    def is_down(self) -> bool:
        """The test took it down."""
        return self._faults.is_down

    def clear(self) -> None:
        """Forget every fault that is still to come; calls that stand at a gate go on."""
        for gate in self._faults.gates:
            gate.open()
        self._faults.gates.clear()
        self._faults.clear()
        self._faults.refusals.clear()
        self.up()

    def forgo(self) -> dict[str, int]:
        """Forget the faults that are still to come; say how many there were, by verb."""
        return self._faults.clear()

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await self._call("enqueue", self._enqueue, drafts)

    async def exchange(self, ask: Ask) -> Exchange:
        return await self._call("exchange", self._exchange, ask)

    async def _enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._check(drafts)
        return await self.inner.enqueue(drafts)

    async def _exchange(self, ask: Ask) -> Exchange:
        self._check(ask.outcomes)
        return await self.inner.exchange(ask)

    def _check(self, items: Sequence[Draft | Outcome]) -> None:
        for item in items:
            if any(predicate(item) for predicate in self._faults.refusals):
                id = item.id if isinstance(item, Draft) else item.job
                raise ItemRefused(self.traits.name, f"the test refuses {id}")

    async def _call(
        self,
        verb: str,
        call: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        self.calls.append(EngineCall(verb, args))
        faults = self._faults.take(verb)
        await self._happen(verb, faults, "before")
        result = await call(*args, **kwargs)
        await self._happen(verb, faults, "after")
        return result

    async def _happen(self, verb: str, faults: Sequence[VerbFault], when: When) -> None:
        for fault in faults:
            if fault.when != when:
                continue
            match fault.what:
                case BaseException():
                    raise fault.what
                case CallGate():
                    await fault.what._pass()
                case seconds:
                    await self.clock.sleep(seconds)
        if self._faults.is_down and verb != "close":
            raise EngineUnavailable(self.traits.name, "the test took it down")
