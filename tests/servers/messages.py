"""The messages between a PostgreSQL client and its server, as far as a proxy must understand them.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass

ENCRYPTION = (80877103, 80877104)
"""What a client says first that would like TLS or GSSAPI; the answer is one letter."""


@dataclass(frozen=True)
class Message:
    """One message, with what had to be known of earlier ones to understand it."""

    from_server: bool
    kind: str
    """Its letter; empty for the first one of a connection."""
    body: bytes
    sql: str = ""
    """What it runs: of a query, and of a Bind whatever its statement was prepared from."""

    @property
    def raw(self) -> bytes:
        return self.kind.encode() + struct.pack("!i", len(self.body) + 4) + self.body

    @property
    def asks(self) -> bool:
        """Whether the server answers this one, and all before it, with a ReadyForQuery."""
        return not self.from_server and self.kind in ("", "Q", "S", "F")

    @property
    def is_ready(self) -> bool:
        """Whether the server is done with what it was asked."""
        return self.from_server and self.kind == "Z"


Which = Callable[[Message], bool]
"""Says which messages are meant."""


def runs(text: str) -> Which:
    """Those with which a client runs SQL that has ``text`` in it, prepared or not."""
    wanted = text.casefold()
    return lambda message: message.kind in ("Q", "B") and wanted in message.sql.casefold()


def answers(kind: str) -> Which:
    """Those of one kind from the server: ``"Z"`` for ReadyForQuery, ``"C"`` for CommandComplete."""
    return lambda message: message.from_server and message.kind == kind


async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message:
    """Read how a client begins; encryption is declined on the server's behalf."""
    while True:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        body = await reader.readexactly(length - 4)
        if struct.unpack("!i", body[:4])[0] not in ENCRYPTION:
            return Message(False, "", body)
        writer.write(b"N")


async def following(reader: asyncio.StreamReader, from_server: bool) -> Message:
    """Read one message that is not the first."""
    head = await reader.readexactly(5)
    body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
    return Message(from_server, chr(head[0]), body)


class Statements:
    """What a client has prepared, by name; the empty name is for one use."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def understood(self, message: Message) -> Message:
        """Return a client's message with its SQL."""
        match message.kind:
            case "Q":
                sql = _strings(message.body, 1)[0]
            case "P":
                name, sql = _strings(message.body, 2)
                self._texts[name] = sql
            case "B":
                _portal, name = _strings(message.body, 2)
                sql = self._texts.get(name, "")
            case _:
                return message
        return Message(message.from_server, message.kind, message.body, sql)


def _strings(body: bytes, count: int) -> list[str]:
    return [part.decode(errors="replace") for part in body.split(b"\0", count)[:count]]
