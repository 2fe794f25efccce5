"""A proxy before a PostgreSQL server that breaks a connection exactly where a test says.

    with Proxy(server.port) as proxy:
        fault = proxy.cut_after(runs("insert into payment"))
        ...                     # through proxy.url(server.url(database))
        fault.wait()            # the server has committed, the client got no answer

A fault is one message, chosen by a predicate and counted (``nth``), and what happens there:

| | the message | its answer |
|---|---|---|
| ``cut_before`` | never arrives | never comes |
| ``cut_after`` | arrives, and the server is done with it | never arrives |
| ``hold_before`` | arrives when released, and so does all after it | comes then |
| ``hold_after`` | arrives, and the server is done with it | arrives when released |

A cut closes both sides. A hold that is never released is a black hole: both sides stay open, and
nothing passes. Each fault happens once. Beside that, ``refuse`` and ``accept`` say what becomes of
new connections, ``cut`` ends those there are. It lives in a thread of its own, so that clients may
be blocking, asynchronous or other processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from servers.messages import Message, Statements, Which, first, following
from servers.ward import PATIENCE, free_port

_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Cut(Exception):
    """A connection ends here."""


class Fault:
    """One message at which something goes wrong, once."""

    def __init__(self, which: Which, nth: int, *, holds: bool, waits_for_answer: bool) -> None:
        self.waits_for_answer = waits_for_answer
        """Whether the server does first what it was asked."""
        self._which = which
        self._left = nth
        self._holds = holds
        self._happened = threading.Event()
        self._released = Future[None]()

    def wait(self) -> None:
        """Return when it has happened."""
        assert self._happened.wait(PATIENCE), "the message of this fault never came"

    @property
    def has_happened(self) -> bool:
        return self._happened.is_set()

    def release(self) -> None:
        """Let go on what is held."""
        self._released.set_result(None)

    def strikes(self, message: Message) -> bool:
        """Count a message; say whether it is the one."""
        if self._left == 0 or not self._which(message):
            return False
        self._left -= 1
        return self._left == 0

    async def happen(self) -> None:
        """Hold up who calls until released, or end its connection."""
        self._happened.set()
        if not self._holds:
            raise Cut
        await asyncio.shield(asyncio.wrap_future(self._released))


class _Connection:
    """A client and its connection to the server, with a pump each way."""

    def __init__(self, client: _Side, server: _Side, faults: list[Fault]) -> None:
        self._client = client
        self._server = server
        self._faults = faults
        self._statements = Statements()
        self._asked = 0
        self._answered = 0
        self._late: dict[int, Fault] = {}
        """Faults that wait for an answer, by its number."""
        self._kept_back = bytearray()
        self._passage = asyncio.Lock()
        """Who holds up one message holds it, and so both directions."""

    async def live(self) -> None:
        """Pass on what either side says until one is gone or a fault cuts them."""
        try:
            await self._ask(await first(*self._client))
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._ask_on())
                pumps.create_task(self._answer_on())
        except* (Cut, ConnectionError, asyncio.IncompleteReadError):
            pass

    async def _ask_on(self) -> None:
        while True:
            message = await following(self._client[0], from_server=False)
            await self._ask(self._statements.understood(message))

    async def _answer_on(self) -> None:
        while True:
            await self._answer(await following(self._server[0], from_server=True))

    async def _ask(self, message: Message) -> None:
        async with self._passage:
            for fault in self._struck_by(message):
                if fault.waits_for_answer:
                    self._late[self._asked + 1] = fault
                else:
                    await fault.happen()
            self._asked += message.asks
            self._server[1].write(message.raw)
            await self._server[1].drain()

    async def _answer(self, message: Message) -> None:
        async with self._passage:
            for fault in self._struck_by(message):
                await fault.happen()
            self._kept_back += message.raw
            late = self._late.get(self._answered + 1)
            # Of an answer that gets lost nothing passes, also not its beginning.
            if late is None or message.is_ready:
                if late is not None:
                    await late.happen()
                self._client[1].write(bytes(self._kept_back))
                self._kept_back.clear()
                await self._client[1].drain()
            self._answered += message.is_ready

    def _struck_by(self, message: Message) -> list[Fault]:
        return [fault for fault in list(self._faults) if fault.strikes(message)]


class Proxy:
    """Listens on a port of its own for the server on another."""

    def __init__(self, server_port: int) -> None:
        self.port = free_port()
        self._server_port = server_port
        self._faults: list[Fault] = []
        self._lives: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._door: asyncio.Server | None = None

    def url(self, url: str) -> str:
        """The same database through this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def cut_before(self, which: Which, nth: int = 1) -> Fault:
        return self._fault(which, nth, holds=False, waits_for_answer=False)

    def cut_after(self, which: Which, nth: int = 1) -> Fault:
        return self._fault(which, nth, holds=False, waits_for_answer=True)

    def hold_before(self, which: Which, nth: int = 1) -> Fault:
        return self._fault(which, nth, holds=True, waits_for_answer=False)

    def hold_after(self, which: Which, nth: int = 1) -> Fault:
        return self._fault(which, nth, holds=True, waits_for_answer=True)

    def accept(self) -> None:
        """Take new connections; so it begins."""
        self._call(self._accept())

    def refuse(self) -> None:
        """Take no more connections, as a machine without a server; those there are go on."""
        self._call(self._refuse())

    def cut(self) -> None:
        """End every connection; return when all are closed."""
        self._call(self._cut())

    def start(self) -> None:
        self._thread.start()
        self.accept()

    def close(self) -> None:
        """End everything."""
        self.refuse()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _fault(self, which: Which, nth: int, *, holds: bool, waits_for_answer: bool) -> Fault:
        fault = Fault(which, nth, holds=holds, waits_for_answer=waits_for_answer)
        self._faults.append(fault)
        return fault

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    async def _accept(self) -> None:
        assert self._door is None, "it accepts already"
        self._door = await asyncio.start_server(self._welcome, "127.0.0.1", self.port)

    async def _refuse(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    async def _cut(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        life = self._loop.create_task(self._serve((reader, writer)))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        # Not by the task itself: one that is cut before its first step has no chance to.
        life.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, client: _Side) -> None:
        try:
            server = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                await _Connection(client, server, self._faults).live()
            finally:
                server[1].transport.abort()
        except ConnectionError:
            pass  # no server: the client is cut, too

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
