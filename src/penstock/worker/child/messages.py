"""What a worker and a child process say to each other, and how it goes through a pipe."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.core.job import Job, Outcome
from penstock.engines.records import Report
from penstock.worker.child.find_task import TaskLocation

# --- to the child -------------------------------------------------------------------------------


class RunAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the child is to run, and all it needs to know of its worker."""

    number: int
    """Its number among all that this child was asked."""
    job: Job
    location: TaskLocation
    worker: str
    ahead: float
    """How far the store's clock is ahead of this machine's."""


class CancelAttempt(msgspec.Struct, frozen=True, tag=True):
    """The attempt of a request is cancelled: let its handler know."""

    number: int


ToChild = RunAttempt | CancelAttempt

# --- from the child -----------------------------------------------------------------------------


class AttemptBegan(msgspec.Struct, frozen=True, tag=True):
    """The handler is being called."""


class CannotRun(msgspec.Struct, frozen=True, tag=True):
    """The task cannot be run in a child."""

    why: str


class SignOfLife(msgspec.Struct, frozen=True, tag=True):
    """The handler shows a sign of life; maybe it reports progress."""

    report: Report | None = None


class AttemptDone(msgspec.Struct, frozen=True, tag=True):
    """The attempt has an outcome; before it there may have been a last report."""

    outcome: Outcome | None
    report: Report | None = None


FromChild = AttemptBegan | CannotRun | SignOfLife | AttemptDone

# --- through a pipe -----------------------------------------------------------------------------

T = TypeVar("T")

LONGEST: Final = 1 << 30
"""Bytes of a message; what says that it is longer is none."""

_LENGTH: Final = struct.Struct("!I")
_CHUNK: Final = 1 << 16

TO_CHILD: Final = msgspec.msgpack.Decoder[ToChild](ToChild)
FROM_CHILD: Final = msgspec.msgpack.Decoder[FromChild](FromChild)


def packed(message: ToChild | FromChild) -> bytes:
    """A message as it is written: its length before it."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def write(pipe: int, message: bytes) -> None:
    """Write all of a packed message.

    On failure: OSError if the other side is gone.
    """
    written = _written(pipe, message)
    while written < len(message):
        written += _written(pipe, memoryview(message)[written:])


def _written(pipe: int, part: bytes | memoryview) -> int:
    try:
        return os.write(pipe, part)
    except BlockingIOError:
        watch(pipe, to_write=True).poll()
        return 0


def watch(pipe: int, *, to_write: bool = False) -> Any:
    """What can wait for a pipe; None where nothing can (Windows)."""
    if not hasattr(select, "poll"):
        return None
    watch = select.poll()
    watch.register(pipe, select.POLLOUT if to_write else select.POLLIN)
    return watch


class Reader(Generic[T]):
    """Reads messages from a pipe, as many at a time as are there."""

    def __init__(self, pipe: int, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._pipe = pipe
        self._watch = watch(pipe)
        self._decode: Callable[[Any], T] = decoder.decode
        self._buffer = bytearray()

    def next(self, timeout: float | None = None) -> T | None:
        """The next message; None: the other side is gone.

        On failure: TimeoutError; ``msgspec.DecodeError`` if a handler has written there.
        """
        buffer = self._buffer
        while True:
            if len(buffer) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
                if end > LONGEST:
                    raise msgspec.DecodeError(f"a message of {end} bytes")
                if len(buffer) >= end:
                    body = bytes(buffer[_LENGTH.size : end])
                    del buffer[:end]
                    return self._decode(body)
            if timeout is not None and self._watch and not self._watch.poll(timeout * 1000):
                raise TimeoutError
            chunk = os.read(self._pipe, _CHUNK)
            if not chunk:
                return None
            buffer += chunk
