"""What a supervisor and its worker processes say to each other, over one socket each."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.job import Outcome
from penstock.worker.status import Pulse

# --- to the process -----------------------------------------------------------------------------


class Orders(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first word: which application to serve, and how."""

    app: str | None
    options: Mapping[str, Any]
    until_empty: bool = False
    log_format: str = "text"
    log_level: str = "info"


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Stop; what runs may go on for so many seconds, None: until it ends. The shorter counts."""

    seconds: float | None


Told = Orders | Drain

# --- from the process ---------------------------------------------------------------------------


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The application is there, and this is what it decides."""

    url: str | None
    """The store, if other processes can reach it."""
    shown: str
    """The store without its secrets."""
    queues: tuple[str, ...]
    lease: float
    drain: float
    grace: float


class Joined(msgspec.Struct, frozen=True, tag=True):
    """It has a lease, under this name."""

    worker: str


class Lives(msgspec.Struct, frozen=True, tag=True):
    """A sign of life."""

    pulse: Pulse


class Replace(msgspec.Struct, frozen=True, tag=True):
    """Somebody else should take over; a wedged one is not waited for as long as it likes."""

    reason: str
    is_wedged: bool = False


class Will(msgspec.Struct, frozen=True, tag=True):
    """What to settle once the process is dead."""

    worker: str
    outcomes: tuple[Outcome, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot work."""

    message: str
    is_usage: bool


class Done(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left to do, and it was told to end then."""


Said = Loaded | Joined | Lives | Replace | Will | Failed | Done

LONGEST: Final = 1 << 30
"""Bytes of a message; what says that it is longer is none."""

_LENGTH: Final = struct.Struct("!I")
_T = TypeVar("_T")


def packed(message: Told | Said) -> bytes:
    """One message, with its length before it."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpacked(buffer: bytearray, decoder: msgspec.msgpack.Decoder[_T]) -> Iterator[_T]:
    """Take every whole message out of what was read.

    On failure: ``msgspec.DecodeError`` if somebody else has written there.
    """
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        end = _LENGTH.size + length
        if length > LONGEST:
            raise msgspec.DecodeError(f"a message of {length} bytes")
        if len(buffer) < end:
            return
        body = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        yield decoder.decode(body)
