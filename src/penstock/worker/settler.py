"""Settling beside the claims, where a store does two things at a time.

One exchange settles what has ended and claims what is next, one after the other. While a worker is
busy, a store that serves several connections can do both at once: then what has ended goes in
exchanges of its own, which claim nothing. A worker has one such exchange in flight at a time, and
one that claims. Few outcomes are not worth it: they go with the next claim.

| if                                      | then                                                  |
|-----------------------------------------|-------------------------------------------------------|
| the reply is lost, or the store is away | the outcomes go again, with the next claim; nothing   |
|                                         | was claimed, so nothing else is unknown. It rests for |
|                                         | a while                                               |
| a row is locked (``LATER``)             | the same                                              |
| the lease is lost                       | all is dropped, as whoever notices it does            |
| an attempt ended while a claim tells    | its outcome waits for that: the two would be in each  |
| that it has begun, or how it ended      | other's way, or settle it twice                       |
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from penstock.engines.engine import Engine
from penstock.engines.retrying import Backoff
from penstock.errors import EngineClosed, EngineError, LeaseLost
from penstock.worker.exchange import Exchanges
from penstock.worker.tools import Tools

LEAST: Final = 50
"""Outcomes that are worth an exchange of their own."""


class Settler:
    """Takes outcomes out of the hands and settles them, as long as there are many."""

    def __init__(self, engine: Engine, exchanges: Exchanges, tools: Tools) -> None:
        self._engine = engine
        self._exchanges = exchanges
        self._hands = tools.hands
        self._journal = tools.journal
        self._clock = tools.clock
        self._wake = tools.wake
        self._backoff = Backoff()
        self._rests_until = -inf
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """It settles, and goes on with what comes meanwhile."""
        return self._task is not None

    def begin(self) -> bool:
        """Settle what there is, if that is enough; True: it does, with what comes meanwhile.

        On failure: what went wrong the last time, if it was nothing that a store does.
        """
        if self._error is not None:
            raise self._error
        is_worth_it = self._engine.traits.is_parallel and self._hands.outcomes >= LEAST
        is_rested = self._clock.monotonic() >= self._rests_until
        if self._task is None and is_worth_it and is_rested:
            self._task = asyncio.create_task(self._settle(), name="penstock settler")
        return self.is_busy

    async def end(self) -> None:
        """Stop, if it must be before the reply. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def pause(self) -> None:
        """Wait until it settles nothing."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _settle(self) -> None:
        hands = self._hands
        try:
            while hands.outcomes >= LEAST and not hands.outcomes_apart:
                most = self._engine.traits.max_batch
                outcomes = hands.set_apart(most, self._exchanges.telling)
                if not outcomes:
                    break
                await self._exchanges.settle(outcomes)
                self._backoff.reset()
        except LeaseLost as error:
            self._exchanges.lose(error.worker)
        except EngineClosed:
            pass  # whoever claims says so
        except EngineError as error:
            # Meanwhile outcomes go with the claims, which wait for the store as they always do.
            self._journal.unavailable("exchange", error)
            self._rests_until = self._clock.monotonic() + self._backoff.next()
        except Exception as error:
            self._error = error
        finally:
            hands.bring_back()
            self._task = None
            self._wake()
