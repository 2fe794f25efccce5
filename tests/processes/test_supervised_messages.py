"""What a worker process says to its supervisor, also while it does not read them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from penstock.core.job import Outcome, OutcomeKind
from penstock.stores import parse
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_counts import ReplicaCounts, shared_file
from penstock.worker.supervisor.replica_messages import (
    Alive,
    FromReplica,
    Joined,
    ReplaceMe,
    SettleAfterDeath,
    unpacked,
)
from penstock.worker_process import SupervisorLink


class Listener:
    """The supervisor's end of the socket."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.ours.setblocking(False)
        file = shared_file()
        self.counts = ReplicaCounts(file)
        os.close(file)
        self.link = SupervisorLink(self.theirs, self.counts)
        self._buffer = bytearray()

    def received(self) -> list[FromReplica]:
        """All that was said since the last call."""
        decoder: msgspec.msgpack.Decoder[FromReplica] = msgspec.msgpack.Decoder(FromReplica)
        try:
            while piece := self.ours.recv(1 << 16):
                self._buffer += piece
        except BlockingIOError:
            pass
        return list(unpacked(self._buffer, decoder))


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.ours.close()
    listener.theirs.close()


def test_what_is_said_is_heard_in_order(listener: Listener) -> None:
    done = Outcome(job="j", claim=1, kind=OutcomeKind.SUCCEEDED, result=b"7")
    link = listener.link
    link.joined("w1")
    link.pulse(Pulse(worker="w1", running=3))
    link.replace("memory", is_wedged=True)
    link.settle_after_death("w1", [done])
    assert listener.received() == [
        Joined("w1"),
        Alive(Pulse(worker="w1", running=3)),
        ReplaceMe("memory", True),
        SettleAfterDeath("w1", (done,)),
    ]


def test_a_supervisor_that_does_not_listen_misses_pulses_and_nothing_else(
    listener: Listener,
) -> None:
    """No call waits, and what matters comes when it listens again."""
    pulses = 20_000
    for number in range(pulses):
        listener.link.pulse(Pulse(worker="w1", claimed=number))
    big = Outcome(job="j", claim=1, kind=OutcomeKind.SUCCEEDED, result=b"x" * 1_000_000)
    listener.link.settle_after_death("w1", [big])
    listener.link.replace("memory")
    said = listener.received()
    while ReplaceMe("memory") not in said:
        listener.link.pulse(Pulse(worker="w1"))
        said += listener.received()
    kept = [each for each in said if not isinstance(each, Alive)]
    assert kept == [SettleAfterDeath("w1", (big,)), ReplaceMe("memory")]
    assert len(said) < pulses


def test_a_supervisor_that_is_gone_is_no_error(listener: Listener) -> None:
    listener.ours.close()
    listener.link.joined("w1")
    listener.link.pulse(Pulse(worker="w1"))
    listener.link.flush()


def test_a_flush_does_not_make_the_reading_thread_time_out(
    listener: Listener,
) -> None:
    """The thread has the same socket, and goes on waiting there."""
    listener.link.joined("w1")
    listener.link.flush()
    assert os.get_blocking(listener.theirs.fileno())


def test_the_store_is_named_so_that_another_process_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    url = parse("sqlite:///50%25 of #jobs.db?synchronous=full".replace("#", "%23"))
    assert parse(url.absolute).location == url.location
    assert parse(url.absolute).options == {"synchronous": "full"}
    monkeypatch.chdir(tmp_path)
    assert parse(url.absolute).location == url.location
