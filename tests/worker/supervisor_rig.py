"""Worker processes that a test plays itself: what they say, and how they die."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec

from penstock.testing.clock import FakeClock
from penstock.worker.supervisor.replica import Replica
from penstock.worker.supervisor.replica_messages import (
    CannotWork,
    Drain,
    FromReplica,
    Joined,
    Loaded,
    ToReplica,
    packed,
    unpacked,
)
from penstock.worker.supervisor.replica_process import ReplicaProcess

LOADED = Loaded(
    url="sqlite:////jobs.db",
    shown="sqlite:///jobs.db",
    queues=("default",),
    lease=15.0,
    drain=30.0,
    grace=5.0,
    upkeep_batch=200,
    crash_limit=3,
)


class FakeProcess:
    """A process that lives until the test says otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class PlayedProcess(ReplicaProcess):
    """A process whose other end the test holds."""

    def __init__(self, pid: int, on_message: Callable[[], None], clock: FakeClock) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.fake = FakeProcess(pid)
        self._wake = on_message
        self._clock = clock
        self._read = bytearray()
        super().__init__(self.fake, ours, on_message, clock.monotonic())

    def says(self, *said: FromReplica) -> None:
        """Let it say something."""
        self.whispers(*said)
        self.receive(self._clock.monotonic())

    def whispers(self, *said: FromReplica) -> None:
        """Let it say something that is not read yet."""
        self._theirs.send(b"".join(packed(each) for each in said))

    def babbles(self, noise: bytes) -> None:
        """Let a handler write to its socket."""
        self._theirs.send(noise)

    def joins(self) -> None:
        self.says(LOADED, Joined(f"w{self.pid}"))

    def fails(self, message: str = "no such thing", *, is_usage: bool = True) -> None:
        """Let it fail to load the application."""
        self.says(CannotWork(message, is_usage))
        self.dies(1)

    def dies(self, code: int = -9) -> None:
        self.fake.code = code
        self._wake()

    def told(self) -> list[float | None]:
        """The drains it was told since the last call, in seconds."""
        try:
            self._read += self._theirs.recv(1 << 16)
        except BlockingIOError:
            pass
        decoder: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica)
        return [each.seconds for each in unpacked(self._read, decoder) if isinstance(each, Drain)]

    def close(self) -> None:
        self._theirs.close()
        super().close()

    def _kill_group(self) -> None:
        if self.fake.code is None:
            self.dies(-9)


class OneReplica:
    """The owner of one replica; keeps every process it has started."""

    def __init__(self, clock: FakeClock, *, waits_for_change: bool = False) -> None:
        self.clock = clock
        self.has_served = False
        self.started: list[PlayedProcess] = []
        self.ended: list[ReplicaProcess] = []
        self.gave_up: list[tuple[str, bool]] = []
        self.is_full = False
        self.replica = Replica(self, clock, waits_for_change=waits_for_change)
        self.running = asyncio.create_task(self.replica.run())

    @property
    def last(self) -> PlayedProcess:
        return self.started[-1]

    def start_process(self, on_message: Callable[[], None]) -> ReplicaProcess:
        if self.is_full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.started.append(PlayedProcess(len(self.started) + 1, on_message, self.clock))
        return self.last

    def clean_up(self, process: ReplicaProcess) -> None:
        self.ended.append(process)

    def give_up(self, why: str, *, is_usage: bool) -> None:
        self.gave_up.append((why, is_usage))
        self.replica.stop(0.0, 0.0)

    async def close(self) -> None:
        self.replica.kill()
        await self.running
        for process in self.started:
            process.close()
