"""What a worker and the child process of a suspect say to each other."""

from __future__ import annotations

import struct
from typing import IO, Any, Final

import msgspec

from penstock.core.job import Job, Outcome
from penstock.engines.records import Report


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to run, and all it needs to know of its worker."""

    job: Job
    module: str
    qualname: str
    worker: str
    ahead: float
    """How far the store's clock is ahead of this machine's."""


class Began(msgspec.Struct, frozen=True, tag=True):
    """The handler is being called."""


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The task cannot be run in a child."""

    why: str


class Said(msgspec.Struct, frozen=True, tag=True):
    """The handler reports progress."""

    report: Report


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The attempt has an outcome."""

    outcome: Outcome | None


Frame = Began | Unfit | Said | Ended

_LENGTH: Final = struct.Struct("!I")


def write(stream: IO[bytes], message: Request | Frame) -> None:
    """Write one message, with its length before it."""
    body = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read(stream: IO[bytes], kind: Any) -> Any:
    """Read one message; None: the other side is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return msgspec.msgpack.decode(body, type=kind) if len(body) == length else None
