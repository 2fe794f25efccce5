"""The main of one supervised worker process: ``python -m penstock.worker_process SOCKET [APP]``.

Over the socket it is told what to serve and when to stop, and tells the supervisor how it goes. It
ends by itself when the socket closes: then its supervisor is dead. SIGTERM or SIGINT drains it, the
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
from penstock.find_app import find_app
from penstock.hosting import WorkerOptions, until_signal
from penstock.stores import Url
from penstock.worker.runtime import loop_factory
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_messages import (
    Alive,
    CannotWork,
    Drain,
    Finished,
    FromReplica,
    Joined,
    Loaded,
    ReplaceMe,
    ReplicaSpec,
    SettleAfterDeath,
    ToReplica,
    packed,
    unpacked,
)
from penstock.worker.worker import Worker

FLUSH_TIMEOUT: Final = 2.0
"""Seconds that the last messages, and then the end of the interpreter, may take: together less than
what the supervisor waits beyond all deadlines.
"""
READ_SIZE: Final = 1 << 16

_log: Final = logging.getLogger("penstock.worker")


class SupervisorLink:
    """Sends messages to the supervisor, which is its parent. Any thread may call.

    No call waits: for a supervisor that does not read, messages are kept, except pulses.
    """

    settles = True

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unsent = bytearray()
        self._lock = threading.Lock()

    def send(self, message: FromReplica) -> None:
        """Send a message now, or with a later one."""
        with self._lock:
            if not (self._unsent and isinstance(message, Alive)):
                self._unsent += packed(message)
            self._send()

    def flush(self) -> None:
        """Send the rest, for which the supervisor may take a moment."""
        with self._lock:
            # Not settimeout: the reading thread shares the socket, and would not wait either.
            timeout = struct.pack("ll", int(FLUSH_TIMEOUT), 0)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            try:
                self._connection.sendall(self._unsent)
            except OSError:
                pass  # the supervisor is dead, or as good as that

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)  # the supervisor is dead: the reading thread sees to it
        del self._unsent[:sent]

    def joined(self, worker: str) -> None:
        self.send(Joined(worker))

    def pulse(self, pulse: Pulse) -> None:
        self.send(Alive(pulse))

    def replace(self, reason: str, *, is_wedged: bool = False) -> None:
        self.send(ReplaceMe(reason, is_wedged))

    def settle_after_death(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        self.send(SettleAfterDeath(worker, tuple(outcomes)))


class StopSwitch:
    """Stops the worker, also before there is one. Any thread may call."""

    def __init__(self) -> None:
        self.is_used = False
        self._worker: Worker | None = None
        self._early: list[float | None] = []
        self._lock = threading.Lock()

    def __call__(self, drain: float | None = None) -> None:
        with self._lock:
            self.is_used = True
            if self._worker is None:
                self._early.append(drain)
            else:
                self._worker.stop(drain)

    def connect(self, worker: Worker) -> None:
        """The application is loaded: this is its worker, which may have been stopped already."""
        with self._lock:
            self._worker = worker
            for drain in self._early:
                worker.stop(drain)

    def supervisor_died(self) -> None:
        """Stop the worker; while the application is still being loaded, end the process."""
        with self._lock:
            is_loading = self._worker is None
        if is_loading:
            os._exit(1)
        self()


def _received(connection: socket.socket) -> Iterator[ToReplica]:
    """The supervisor's messages, until its end of the socket is closed."""
    buffer = bytearray()
    decoder: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica)
    while True:
        try:
            data = connection.recv(READ_SIZE)
        except OSError:
            return
        if not data:
            return
        buffer += data
        yield from unpacked(buffer, decoder)


def _obey(messages: Iterator[ToReplica], stop: StopSwitch) -> None:
    """Stop the worker when the supervisor says so, or is dead."""
    for message in messages:
        if isinstance(message, Drain):
            stop(inf if message.seconds is None else message.seconds)
    logs.say(_log, logging.WARNING, "the supervisor is gone, the worker ends")
    stop.supervisor_died()


def main() -> None:
    """Run a worker process, from the supervisor's first message to the exit code."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # or what a handler starts would keep it open
    del sys.argv[1:]
    messages = _received(connection.dup())
    spec = next(messages, None)
    if not isinstance(spec, ReplicaSpec):
        sys.exit(
            "penstock.worker_process is started by `penstock worker`, which gives it its orders"
        )
    link = SupervisorLink(connection)
    code = serve(spec, link, messages)
    link.flush()
    _end_soon(code)
    sys.exit(code)


def serve(spec: ReplicaSpec, link: SupervisorLink, messages: Iterator[ToReplica]) -> int:
    """Load the application and work for it; return the exit code."""
    try:
        logs.configure("json" if spec.log_format == "json" else "text", spec.log_level)
        logs.capture()
        stop = StopSwitch()
        # A thread of its own: no handler can block it for ever.
        threading.Thread(
            target=_obey, args=(messages, stop), name="penstock-orders", daemon=True
        ).start()
        app = find_app(spec.app)
        worker = app._worker(cast(WorkerOptions, dict(spec.options)), link)
        stop.connect(worker)
        link.send(_loaded(app, worker))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            client = app._facade.loop_client
            runner.run(until_signal(worker, stop, client, until_empty=spec.until_empty))
        link.pulse(_final_counts(worker))
    except (Exception, SystemExit) as error:
        link.send(_cannot_work(error))
        return 1
    if spec.until_empty and not stop.is_used:
        link.send(Finished())
    return 0


def _final_counts(worker: Worker) -> Pulse:
    """What it has done in all: the last pulse may be a second old."""
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
        url=_shared_url(app.url),
        shown=str(app.url),
        queues=settings.queues,
        lease=settings.lease,
        drain=settings.drain,
        grace=settings.grace,
        upkeep_batch=settings.upkeep_batch,
        crash_limit=settings.crash_limit,
    )


def _shared_url(url: Url) -> str | None:
    """The URL by which another process reaches the same store, from any working directory."""
    match url.scheme:
        case "memory":
            return None
        case "sqlite":
            query = f"?{urlencode(url.options)}" if url.options else ""
            return f"sqlite:///{quote(url.location)}{query}"
        case _:
            return url.text


def _cannot_work(error: BaseException) -> CannotWork:
    # An application that is there but does not load is no wrong call.
    is_broken = isinstance(error, AppNotFound) and error.__cause__ is not None
    is_usage = isinstance(error, UsageError) and not is_broken
    if isinstance(error, PenstockError):
        return CannotWork(str(error), is_usage)
    trace = "".join(traceback.format_exception(error)).rstrip()
    return CannotWork(f"the worker could not go on:\n{trace}", is_usage)


def _end_soon(code: int) -> None:
    """Make the process end, whatever threads or exit handlers it has been left with."""

    def end() -> None:
        threading.Event().wait(FLUSH_TIMEOUT)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # the reader is gone
        os._exit(code)

    threading.Thread(target=end, name="penstock-end", daemon=True).start()


if __name__ == "__main__":
    main()
