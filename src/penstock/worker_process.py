"""A worker process under a supervisor: ``python -m penstock.worker_process SOCKET [APP]``.

It hears its orders and later when to stop over a socket, tells over the same how it goes, and ends
by itself when the socket closes: then its supervisor is dead. SIGTERM or SIGINT drains it, the
second one gives back what runs; its supervisor starts another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, cast
from urllib.parse import quote, urlencode

import msgspec

from penstock import logs
from penstock.app import Penstock
from penstock.core.job import Outcome
from penstock.errors import AppNotFound, PenstockError, UsageError
from penstock.find_app import locate
from penstock.hosting import WorkerOptions, until_signal
from penstock.stores import Url
from penstock.worker.runtime import loop_factory
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_messages import (
    Done,
    Drain,
    Failed,
    Joined,
    Lives,
    Loaded,
    Orders,
    Replace,
    Said,
    Told,
    Will,
    packed,
    unpacked,
)
from penstock.worker.worker import Worker

LAST_WORDS: Final = 2.0
"""Seconds that the last words, and then the end of the interpreter, may take: together less than
what the supervisor waits beyond all deadlines.
"""
PIECE: Final = 1 << 16

_log: Final = logging.getLogger("penstock.worker")


class Voice:
    """What the process says to its supervisor, who is its overseer. Safe for threads; never waits.

    A supervisor that does not listen costs pulses, nothing else: the rest is kept for it.
    """

    settles = True

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._kept = bytearray()
        self._lock = threading.Lock()

    def say(self, said: Said) -> None:
        """Say something as soon as it can be heard."""
        with self._lock:
            if self._kept and isinstance(said, Lives):
                self._send()
                return
            self._kept += packed(said)
            self._send()

    def flush(self) -> None:
        """Say the last words, for which a supervisor may take a moment."""
        with self._lock:
            # Not settimeout: what hears shares the socket, and would not wait any more either.
            patience = struct.pack("ll", int(LAST_WORDS), 0)
            self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            try:
                self._talk.sendall(self._kept)
            except OSError:
                pass  # it is dead, or as good as that

    def _send(self) -> None:
        try:
            sent = self._talk.send(self._kept, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._kept)  # it is dead: whoever reads the socket knows
        del self._kept[:sent]

    def joined(self, worker: str) -> None:
        self.say(Joined(worker))

    def pulse(self, pulse: Pulse) -> None:
        self.say(Lives(pulse))

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        self.say(Replace(reason, is_wedged))

    def bequeath(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        self.say(Will(worker, tuple(outcomes)))


class Stop:
    """The way to stop the worker, and whether anybody has gone it. Safe for threads."""

    def __init__(self) -> None:
        self.is_told = False
        self._worker: Worker | None = None
        self._early: list[float | None] = []
        self._lock = threading.Lock()

    def __call__(self, drain: float | None = None) -> None:
        with self._lock:
            self.is_told = True
            if self._worker is None:
                self._early.append(drain)
            else:
                self._worker.stop(drain)

    def reaches(self, worker: Worker) -> None:
        """The application is loaded: this is its worker, which may be told to stop already."""
        with self._lock:
            self._worker = worker
            for drain in self._early:
                worker.stop(drain)

    def because_nobody_is_left(self) -> None:
        """The supervisor is dead; an application that is still loaded has nobody to work for."""
        with self._lock:
            is_loading = self._worker is None
        if is_loading:
            os._exit(1)
        self()


class Ear:
    """What the supervisor says, heard by a thread that no handler can block for ever."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._frames = self._listen()

    def orders(self) -> Orders | None:
        """The first word; None: there is no supervisor."""
        told = next(self._frames, None)
        return told if isinstance(told, Orders) else None

    def obey(self, stop: Stop) -> None:
        """Stop the worker whenever told to, from now on, and when nobody is there any more."""
        threading.Thread(
            target=self._obey, args=(stop,), name="penstock-orders", daemon=True
        ).start()

    def _obey(self, stop: Stop) -> None:
        for told in self._frames:
            if isinstance(told, Drain):
                stop(inf if told.seconds is None else told.seconds)
        logs.say(_log, logging.WARNING, "the supervisor is gone, the worker ends")
        stop.because_nobody_is_left()

    def _listen(self) -> Iterator[Told]:
        buffer = bytearray()
        decoder: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)
        while piece := self._recv():
            buffer += piece
            yield from unpacked(buffer, decoder)

    def _recv(self) -> bytes:
        try:
            return self._talk.recv(PIECE)
        except OSError:
            return b""


def main() -> None:
    """Be a worker process."""
    talk = socket.socket(fileno=int(sys.argv[1]))
    talk.set_inheritable(False)  # or what a handler starts would keep it open
    del sys.argv[1:]
    voice, ear = Voice(talk), Ear(talk.dup())
    orders = ear.orders()
    if orders is None:
        sys.exit(
            "penstock.worker_process is started by `penstock worker`, which gives it its orders"
        )
    code = serve(orders, voice, ear)
    voice.flush()
    _end_soon(code)
    sys.exit(code)


def serve(orders: Orders, voice: Voice, ear: Ear) -> int:
    """Load the application and work for it; return the exit code."""
    try:
        logs.configure("json" if orders.log_format == "json" else "text", orders.log_level)
        logs.capture()
        stop = Stop()
        ear.obey(stop)
        app = locate(orders.app)
        worker = app._worker(cast(WorkerOptions, dict(orders.options)), voice)
        stop.reaches(worker)
        voice.say(_loaded(app, worker))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(until_signal(worker, stop, until_empty=orders.until_empty))
        voice.pulse(_sums(worker))
    except (Exception, SystemExit) as error:
        voice.say(_failed(error))
        return 1
    if orders.until_empty and not stop.is_told:
        voice.say(Done())
    return 0


def _sums(worker: Worker) -> Pulse:
    """What it has done in all: much may have happened since the last second."""
    stats = worker.stats
    return Pulse(
        worker=worker.id,
        claimed=stats.claimed,
        succeeded=stats.succeeded,
        failed=stats.failed,
        retried=stats.retried,
    )


def _loaded(app: Penstock, worker: Worker) -> Loaded:
    settings = worker.settings
    return Loaded(
        url=_shared(app.url),
        shown=str(app.url),
        queues=settings.queues,
        lease=settings.lease,
        drain=settings.drain,
        grace=settings.grace,
    )


def _shared(url: Url) -> str | None:
    """The URL by which another process reaches the same store, wherever it is started."""
    match url.scheme:
        case "memory":
            return None
        case "sqlite":
            query = f"?{urlencode(url.options)}" if url.options else ""
            return f"sqlite:///{quote(url.location)}{query}"
        case _:
            return url.text


def _failed(error: BaseException) -> Failed:
    # An application that is there but does not load is no wrong call.
    is_broken = isinstance(error, AppNotFound) and error.__cause__ is not None
    is_usage = isinstance(error, UsageError) and not is_broken
    if isinstance(error, PenstockError):
        return Failed(str(error), is_usage)
    told = "".join(traceback.format_exception(error)).rstrip()
    return Failed(f"the worker could not go on:\n{told}", is_usage)


def _end_soon(code: int) -> None:
    """See to it that the process ends, whatever threads or exit handlers it has been left with."""

    def end() -> None:
        threading.Event().wait(LAST_WORDS)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it any more
        os._exit(code)

    threading.Thread(target=end, name="penstock-end", daemon=True).start()


if __name__ == "__main__":
    main()
