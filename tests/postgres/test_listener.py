"""The proof that a LISTEN connection hears, with connections that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.engines.postgres import listener
from penstock.engines.postgres.listener import PROBE, Listener


class Played:
    """A connection that hears what the test puts into it; None ends it."""

    is_pooled = False

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str | None] = asyncio.Queue()

    async def listen(self, channel: str) -> AsyncIterator[str]:
        while (payload := await self.heard.get()) is not None:
            yield payload

    async def close(self) -> None: ...


async def test_what_one_connection_heard_proves_nothing_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one is deaf: its LISTEN is answered, and no notification comes."""
    monkeypatch.setattr(listener, "PATIENCE", 0.2)
    monkeypatch.setattr(listener, "AGAIN", (0.001, 0.001))
    connections = [Played(), Played()]
    made: list[Played] = []
    sent = asyncio.Event()
    changes: list[bool] = []

    async def connect() -> Any:
        if len(made) == len(connections):
            await asyncio.Event().wait()
        made.append(connections[len(made)])
        return made[-1]

    async def send(payload: str) -> None:
        sent.set()
        if len(made) == 1:
            made[0].heard.put_nowait(PROBE)
        else:
            made[1].heard.put_nowait("")  # the answer to LISTEN, as late as it can be

    heard = Listener(connect, "wake", send, print, lambda: changes.append(heard.hears))
    connections[0].heard.put_nowait("")
    heard.start()
    while not changes:  # noqa: ASYNC110  (the listener's task makes it)
        await asyncio.sleep(0)
    sent.clear()
    connections[0].heard.put_nowait(None)
    while len(changes) < 2 or heard._failures < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await heard.close()

    assert changes == [True, False]
    assert not sent.is_set()
