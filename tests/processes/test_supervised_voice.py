"""What a worker process says to its supervisor, also when nobody listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from penstock.core.job import Outcome, OutcomeKind
from penstock.stores import parse
from penstock.worker.status import Pulse
from penstock.worker.supervisor.replica_messages import (
    Joined,
    Lives,
    Replace,
    Said,
    Will,
    unpacked,
)
from penstock.worker_process import Voice, _shared


class Listener:
    """The supervisor's end of the socket."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.ours.setblocking(False)
        self.voice = Voice(self.theirs)
        self._buffer = bytearray()

    def heard(self) -> list[Said]:
        """All that was said since the last call."""
        decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
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
    done = Outcome(job="j", attempt=1, kind=OutcomeKind.SUCCEEDED, result=b"7")
    voice = listener.voice
    voice.joined("w1")
    voice.pulse(Pulse(worker="w1", running=3))
    voice.replace("memory", is_wedged=True)
    voice.bequeath("w1", [done])
    assert listener.heard() == [
        Joined("w1"),
        Lives(Pulse(worker="w1", running=3)),
        Replace("memory", True),
        Will("w1", (done,)),
    ]


def test_a_supervisor_that_does_not_listen_misses_pulses_and_nothing_else(
    listener: Listener,
) -> None:
    """No call waits, and what matters comes when it listens again."""
    pulses = 20_000
    for number in range(pulses):
        listener.voice.pulse(Pulse(worker="w1", claimed=number))
    big = Outcome(job="j", attempt=1, kind=OutcomeKind.SUCCEEDED, result=b"x" * 1_000_000)
    listener.voice.bequeath("w1", [big])
    listener.voice.replace("memory")
    said = listener.heard()
    while Replace("memory") not in said:
        listener.voice.pulse(Pulse(worker="w1"))
        said += listener.heard()
    kept = [each for each in said if not isinstance(each, Lives)]
    assert kept == [Will("w1", (big,)), Replace("memory")]
    assert len(said) < pulses


def test_a_supervisor_that_is_gone_is_no_error(listener: Listener) -> None:
    listener.ours.close()
    listener.voice.joined("w1")
    listener.voice.pulse(Pulse(worker="w1"))
    listener.voice.flush()


def test_last_words_do_not_make_the_ear_believe_that_nobody_is_left(listener: Listener) -> None:
    """It has the same socket, and goes on waiting there."""
    listener.voice.joined("w1")
    listener.voice.flush()
    assert os.get_blocking(listener.theirs.fileno())


def test_the_store_is_named_so_that_another_process_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    url = parse("sqlite:///50%25 of #jobs.db?synchronous=full".replace("#", "%23"))
    assert parse(_shared(url) or "").location == url.location
    assert parse(_shared(url) or "").options == {"synchronous": "full"}
    monkeypatch.chdir(tmp_path)
    assert parse(_shared(url) or "").location == url.location
    assert _shared(parse("memory://here")) is None
