"""Asking a store again and again how it does, also one that goes away and comes back."""

from __future__ import annotations

from penstock.cli.store import check_made, shared
from penstock.cli.top.view import View, seen
from penstock.clock import Clock
from penstock.engines.engine import Engine
from penstock.engines.records import WorkerInfo
from penstock.stores import connect

WINDOW = 10.0
"""Seconds that rates are taken over."""
LIMIT = 100
"""Running jobs, and failed ones, that are asked for."""


class Beats:
    """When each worker's beat was seen to grow, by the clock of whoever looks."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, bool]] = {}

    def note(self, workers: tuple[WorkerInfo, ...], now: float) -> dict[str, float | None]:
        """Look at the workers as they are ``now``; return for how long each stands still.

        One that has not grown before our eyes is given a whole lease to do so: until then nothing
        is known of it.
        """
        before, self._seen = self._seen, {}
        still: dict[str, float | None] = {}
        for info in workers:
            beat, at, has_grown = before.get(info.id, (info.beat, now, False))
            if info.beat != beat:
                at, has_grown = now, True
            self._seen[info.id] = (info.beat, at, has_grown)
            still[info.id] = now - at if has_grown or now - at > (info.lease or 15.0) else None
        return still


class Watch:
    """One look after the other at the store that ``url`` names. Belongs to one loop."""

    def __init__(self, url: str | None, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._engine: Engine | None = None
        self._store = ""
        self._beats = Beats()
        self._known: tuple[str, ...] = ()

    async def look(self) -> View:
        """See how the store does.

        On failure: a ``PenstockError``; the next look reaches for the store anew.
        """
        try:
            engine = await self._reached()
            glance = await engine.glance(WINDOW, LIMIT)
            term = await engine.leader()
        except BaseException:
            await self.close()
            raise
        view = View(
            store=self._store,
            glance=glance,
            window=WINDOW,
            leader=None if term is None else term.holder,
            stillness=self._beats.note(glance.workers, self._clock.monotonic()),
            known=self._known,
        )
        self._known = seen(self._known, view)
        return view

    async def close(self) -> None:
        """Let the store go."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _reached(self) -> Engine:
        if self._engine is None:
            with shared(self._url) as app:
                await check_made(app, self._url)
                self._store = str(app.url)
                engine = connect(app.url.text, self._clock)
            await engine.open()
            self._engine = engine
        return self._engine
