"""The messages between a supervisor and each of its worker processes, over one socket each."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.job import Outcome
from penstock.worker.status import Pulse

# --- to the process -----------------------------------------------------------------------------


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message: which application to serve, and how."""

    app: str | None
    options: Mapping[str, Any]
    until_empty: bool = False
    log_format: str = "text"
    log_level: str = "info"


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Stop; attempts may go on for so many seconds, None: until they end. The shortest counts."""

    seconds: float | None


ToReplica = ReplicaSpec | Drain

# --- from the process ---------------------------------------------------------------------------


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The application is imported, and these are its settings."""

    url: str | None
    """The store; None: no other process can reach it."""
    shown: str
    """The store's URL without its secrets."""
    queues: tuple[str, ...]
    lease: float
    drain: float
    grace: float
    upkeep_batch: int
    crash_limit: int


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The worker has a lease, under this name."""

    worker: str


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, once a second."""

    pulse: Pulse


class ReplaceMe(msgspec.Struct, frozen=True, tag=True):
    """Another process should take over; a wedged one is drained within a limit."""

    reason: str
    is_wedged: bool = False


class SettleAfterDeath(msgspec.Struct, frozen=True, tag=True):
    """Outcomes to settle once the process is dead."""

    worker: str
    outcomes: tuple[Outcome, ...]


class CannotWork(msgspec.Struct, frozen=True, tag=True):
    """The process ends with an error."""

    message: str
    is_usage: bool


class Finished(msgspec.Struct, frozen=True, tag=True):
    """No job is left, and the process was told to end then."""


FromReplica = Loaded | Joined | Alive | ReplaceMe | SettleAfterDeath | CannotWork | Finished

LONGEST: Final = 1 << 30
"""Bytes of a message; a longer length is not a message of ours."""

_LENGTH: Final = struct.Struct("!I")
_T = TypeVar("_T")


def packed(message: ToReplica | FromReplica) -> bytes:
    """One message, with its length before it."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpacked(buffer: bytearray, decoder: msgspec.msgpack.Decoder[_T]) -> Iterator[_T]:
    """Take every whole message out of what was read.

    On failure: ``msgspec.DecodeError`` if a handler has written to the socket.
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
