"""Worker processes that a test plays itself: what they say, and how they die."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec

from penstock.testing.clock import FakeClock
from penstock.worker.supervisor.log import StaffJournal
from penstock.worker.supervisor.replica import Post
from penstock.worker.supervisor.replica_messages import (
    Drain,
    Failed,
    Joined,
    Loaded,
    Said,
    Told,
    packed,
    unpacked,
)
from penstock.worker.supervisor.replica_process import Member

LOADED = Loaded(
    url="sqlite:////jobs.db",
    shown="sqlite:///jobs.db",
    queues=("default",),
    lease=15.0,
    drain=30.0,
    grace=5.0,
)


class FakeProcess:
    """A process that lives until the test says otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Played(Member):
    """A member whose other end the test holds."""

    def __init__(self, pid: int, heard: Callable[[], None], clock: FakeClock) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.fake = FakeProcess(pid)
        self._wake = heard
        self._clock = clock
        self._read = bytearray()
        super().__init__(self.fake, ours, heard, clock.monotonic())

    def says(self, *said: Said) -> None:
        """Let it say something."""
        self.whispers(*said)
        self.hear(self._clock.monotonic())

    def whispers(self, *said: Said) -> None:
        """Let it say something that nobody has listened to yet."""
        self._theirs.send(b"".join(packed(each) for each in said))

    def babbles(self, noise: bytes) -> None:
        """Let somebody else write to its socket."""
        self._theirs.send(noise)

    def joins(self) -> None:
        self.says(LOADED, Joined(f"w{self.pid}"))

    def fails(self, message: str = "no such thing", *, is_usage: bool = True) -> None:
        """Let it fail to load the application."""
        self.says(Failed(message, is_usage))
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
        decoder: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)
        return [each.seconds for each in unpacked(self._read, decoder) if isinstance(each, Drain)]

    def close(self) -> None:
        self._theirs.close()
        super().close()

    def _kill_group(self) -> None:
        if self.fake.code is None:
            self.dies(-9)


class Office:
    """An employer with one post; keeps everybody it ever hired."""

    def __init__(self, clock: FakeClock, *, waits_for_change: bool = False) -> None:
        self.clock = clock
        self.has_served = False
        self.hired: list[Played] = []
        self.buried: list[Member] = []
        self.gave_up: list[tuple[str, bool]] = []
        self.is_full = False
        self.post = Post(self, clock, StaffJournal(), waits_for_change=waits_for_change)
        self.keeping = asyncio.create_task(self.post.keep())

    @property
    def last(self) -> Played:
        return self.hired[-1]

    def hire(self, heard: Callable[[], None]) -> Member:
        if self.is_full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.hired.append(Played(len(self.hired) + 1, heard, self.clock))
        return self.last

    def bury(self, member: Member) -> None:
        self.buried.append(member)

    def give_up(self, why: str, *, is_usage: bool) -> None:
        self.gave_up.append((why, is_usage))
        self.post.stop(0.0, 0.0)

    async def close(self) -> None:
        self.post.kill()
        await self.keeping
        for member in self.hired:
            member.close()
