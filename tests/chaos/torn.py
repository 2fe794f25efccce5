"""Engines that break a promise on purpose: a run on one of them must be found guilty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import msgspec

from penstock import Penstock
from penstock.core.job import Draft, Outcome, OutcomeKind
from penstock.engines.engine import Engine
from penstock.engines.records import Ask, Exchange, Receipt
from penstock.stores import connector, observed
from penstock.testing import Faulty

EVERY = 20
"""One in so many is not treated as it should be."""


class Dropping(Faulty):
    """Acknowledges jobs that it does not store."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._numbers = count(1)

    async def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        kept = [draft for draft in drafts if next(self._numbers) % EVERY]
        receipts = {receipt.id: receipt for receipt in await super().enqueue(kept)}
        return [receipts.get(draft.id, Receipt(draft.id, True)) for draft in drafts]


class Forgetting(Faulty):
    """Tells workers that their jobs have succeeded, and gives them out once more."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._numbers = count(1)

    async def exchange(self, ask: Ask) -> Exchange:
        outcomes = tuple(map(self._kept, ask.outcomes))
        return await super().exchange(msgspec.structs.replace(ask, outcomes=outcomes))

    def _kept(self, outcome: Outcome) -> Outcome:
        if outcome.kind is not OutcomeKind.SUCCEEDED or next(self._numbers) % EVERY:
            return outcome
        return Outcome(job=outcome.job, claim=outcome.claim, kind=OutcomeKind.RELEASED)


KINDS: dict[str, Callable[[Engine], Engine]] = {"dropping": Dropping, "forgetting": Forgetting}


def tear(app: Penstock, kind: str) -> None:
    """Let the app's store be a broken one, from the next handle on."""
    whole = connector(app.url, app.clock)
    broken = partial(observed, lambda: KINDS[kind](whole()), app.bus, app.settings)
    app._source.put(replace(app._source.opener, connect=broken))
