"""The small parts of a supervisor: silence, status, systemd, frames."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys

import msgspec
import pytest

from penstock.engines.memory.engine import MemoryEngine
from penstock.engines.memory.store import MemoryStore
from penstock.errors import BadOption
from penstock.testing import Faulty
from penstock.worker.status import Pulse
from penstock.worker.supervisor.host import Systemd
from penstock.worker.supervisor.replica_messages import (
    Alive,
    Drain,
    Finished,
    Joined,
    ReplicaSpec,
    ToReplica,
    packed,
    unpacked,
)
from penstock.worker.supervisor.replica_process import ReplicaProcess
from penstock.worker.supervisor.status import StatusTotals
from penstock.worker.supervisor.supervisor import SETTLE, Supervisor, SupervisorSettings
from worker.supervisor_rig import LOADED, FakeProcess, PlayedProcess

SPEC = ReplicaSpec(app="shop:app", options={"threads": 2})


class SupervisorRig:
    """A supervisor on a fake clock, whose processes the test plays."""

    def __init__(self, clock, **settings) -> None:
        self.clock = clock
        self.started: list[PlayedProcess] = []
        self.engine = Faulty(MemoryEngine(MemoryStore(), clock))
        self.supervisor = Supervisor(
            lambda url: self.engine,
            SPEC,
            SupervisorSettings(**settings),
            clock=clock,
            environ={},
            start=self.start,
        )
        self.running = asyncio.create_task(self.supervisor.run())

    def start(self, spec, on_message, now) -> PlayedProcess:
        assert spec is SPEC
        self.started.append(PlayedProcess(len(self.started) + 1, on_message, self.clock))
        return self.started[-1]

    async def close(self) -> None:
        for _ in range(3):
            self.supervisor.stop("the test is over")
        await self.running
        for process in self.started:
            process.close()


@pytest.fixture
async def rig(clock):
    rig = SupervisorRig(clock, hang_limit=20.0)
    await clock.settle()
    yield rig
    await rig.close()


async def test_a_process_that_is_silent_for_too_long_is_killed_and_followed(rig, clock):
    (process,) = rig.started
    process.joins()
    await clock.elapse(19)
    assert process.is_alive
    await clock.elapse(3)
    assert process.code == -9
    assert len(rig.started) == 2


async def test_a_sign_of_life_ends_the_silence(rig, clock):
    (process,) = rig.started
    process.joins()
    for _ in range(10):
        await clock.elapse(15)
        process.says(Alive(Pulse(worker="w1")))
        await clock.settle()
    assert process.is_alive


async def test_what_the_supervisor_slept_through_is_no_silence(rig, clock):
    (process,) = rig.started
    process.joins()
    await clock.elapse(5)
    clock.advance(3600)
    await clock.elapse(5)
    assert process.is_alive


async def test_a_process_that_imports_for_long_is_not_called_silent(rig, clock):
    await clock.elapse(3600)
    assert rig.started[0].is_alive


async def test_a_process_is_heard_though_a_fork_holds_the_socket_of_the_one_before(rig, clock):
    """A fork of a handler outlives its process, whose end of the socket never closes then."""
    (first,) = rig.started
    first.joins()
    await clock.elapse(5)
    number = first.fileno()
    first.dies()
    await clock.settle()
    _, second = rig.started
    assert second.fileno() == number
    second.whispers(LOADED, Joined("w2"))
    while second.joined_at is None:  # noqa: ASYNC110 - the sign comes through a socket
        await asyncio.sleep(0)


@pytest.mark.parametrize("noise", [b"\0\0\0\5hello", b"\xff" * 100], ids=["frame", "length"])
async def test_a_process_that_cannot_be_understood_any_more_is_replaced(rig, clock, noise):
    (old,) = rig.started
    old.joins()
    await clock.elapse(5)
    old.babbles(noise)
    while len(rig.started) == 1:  # noqa: ASYNC110 - the sign comes through a socket
        await asyncio.sleep(0)
    assert old.is_alive
    rig.started[1].joins()
    await clock.elapse(1)
    assert old.told() == [None, 30.0]


async def test_a_process_that_cannot_be_understood_before_it_joins_is_killed(rig, clock):
    (first,) = rig.started
    first.babbles(b"\xff" * 100)
    while first.is_alive:  # noqa: ASYNC110 - the sign comes through a socket
        await asyncio.sleep(0)
    await clock.elapse(1)
    assert len(rig.started) == 2


def test_a_process_that_never_stops_talking_is_not_listened_to_for_ever(clock):
    class Flood(socket.socket):
        def recv(self, *_: object) -> bytes:
            return packed(Alive(Pulse(worker="w1")))

    with Flood() as flood:
        assert ReplicaProcess(FakeProcess(1), flood, lambda: None, 0.0).receive(0.0)


async def test_an_application_that_loads_for_long_is_worth_one_word(rig, clock, caplog):
    await clock.elapse(300)
    told = [text for text in caplog.messages if "still loading" in text]
    assert [text.partition(" hint")[0] for text in told] == [
        "application still loading pid=1 seconds=31"
    ]


async def test_a_second_sighup_does_not_wait_for_an_successor_that_never_joins(rig, clock):
    (old,) = rig.started
    old.joins()
    await clock.elapse(5)
    for number in (1, 2):
        os.kill(os.getpid(), signal.SIGHUP)
        while len(rig.started) == number:
            await clock.settle()
    _, hangs, successor = rig.started
    assert hangs.code == -9
    successor.joins()
    await clock.settle()
    assert old.told() == [None]


async def test_code_that_cannot_be_watched_stops_no_process(clock, caplog):
    rig = SupervisorRig(clock, reloads_from="/nowhere/at/all")
    while not caplog.messages and not rig.running.done():
        await clock.settle()
    assert "code not watched" in caplog.text
    assert "send SIGHUP to load new code" in caplog.text
    rig.started[0].joins()
    await clock.elapse(5)
    assert rig.started[0].is_alive
    await rig.close()


async def test_it_ends_well_when_its_processes_do(clock):
    rig = SupervisorRig(clock, processes=2)
    await clock.settle()
    for process in rig.started:
        process.joins()
    await clock.settle()
    os.kill(os.getpid(), signal.SIGTERM)
    for process in rig.started:
        while process.told() != [30.0]:  # noqa: ASYNC110 - the sign comes through a socket
            await asyncio.sleep(0)
        process.dies(0)
    assert await rig.running == 0
    for process in rig.started:
        process.close()


async def test_a_third_signal_does_not_wait_long_for_a_store_that_is_away(clock):
    rig = SupervisorRig(clock)
    await clock.settle()
    (process,) = rig.started
    process.says(msgspec.structs.replace(LOADED, grace=3600.0), Joined("w1"))
    await clock.elapse(5)
    rig.engine.down()
    for _ in range(3):
        rig.supervisor.stop("Ctrl-C")
    await clock.elapse(SETTLE + 1)
    assert rig.running.done()
    assert await rig.running == 1
    process.close()


async def test_work_that_is_done_before_a_message_is_read_was_done_all_the_same(clock, caplog):
    """With ``--until-empty`` a process may be over when it is first listened to."""
    caplog.set_level("INFO", "penstock")
    rig = SupervisorRig(clock)
    await clock.settle()
    (process,) = rig.started
    pulse = Pulse(worker="w1", succeeded=2)
    process.whispers(LOADED, Joined("w1"), Alive(pulse), Finished())
    process.dies(0)
    assert await rig.running == 0
    process.close()
    assert caplog.messages == [
        "penstock worker ready processes=1 queues=default tasks=3 store=sqlite:///jobs.db",
        "penstock worker ended succeeded=2 failed=0 retried=0",
    ]


async def test_signals_are_again_what_they_were(clock):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    rig = SupervisorRig(clock)
    await clock.settle()
    await rig.close()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 0}, "processes=0: give a whole number from 1"),
        ({"hang_limit": 2.0}, "hang_limit=2.0: give at least 10 s: a sign of life comes every s"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(BadOption) as caught:
        SupervisorSettings(**settings)
    assert message in str(caught.value)


# --- adopted -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a test adopt processes")
def test_orphans_are_reaped_and_its_own_are_not():
    """What a handler has left behind becomes a child of process 1, which is a supervisor here."""
    code = (
        "import ctypes, os, subprocess, sys\n"
        "from penstock.worker.supervisor.host import reap_orphans\n"
        "PR_SET_CHILD_SUBREAPER = 36\n"
        "ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)\n"
        "leave = 'import subprocess; print(subprocess.Popen([\"true\"]).pid)'\n"
        "left = int(subprocess.check_output([sys.executable, '-c', leave]))\n"
        "while os.path.exists(f'/proc/{left}'):\n"
        "    reap_orphans(())\n"
        "own = subprocess.Popen(['false'])\n"
        "os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)\n"
        "reap_orphans({own.pid})\n"
        "assert own.wait() == 1\n"
        "reap_orphans(())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- status --------------------------------------------------------------------------------------


def test_the_status_sums_up_the_living_and_the_dead(clock):
    processes = [PlayedProcess(number, lambda: None, clock) for number in (1, 2, 3)]
    for process in processes:
        pulse = Pulse(worker="w", running=2, waiting=1, succeeded=10, failed=1, retried=3)
        process.says(Joined("w"), Alive(pulse))
    totals = StatusTotals()
    totals.add_dead(processes[0])
    assert totals.counts(processes[1:], 100.0) == {
        "processes": 2,
        "running": 4,
        "waiting": 2,
        "succeeded": 30,
        "failed": 3,
        "retried": 9,
    }
    processes[1].says(Alive(Pulse(worker="w", succeeded=71, failed=1, lag=2.54)))
    assert totals.counts(processes[1:2], 110.0) == {
        "processes": 1,
        "running": 0,
        "waiting": 0,
        "succeeded": 81,
        "failed": 2,
        "retried": 3,
        "per_second": 5.0,
        "loop_late": "2.5s",
    }
    for process in processes:
        process.close()


# --- systemd -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told_over_a_datagram_socket(tmp_path, kind):
    name = f"@penstock-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1) if kind == "abstract" else name)
        manager.settimeout(60)
        systemd = Systemd({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"})
        systemd.tell(READY=1, STATUS="ready")
        assert manager.recv(4096) == b"READY=1\nSTATUS=ready"
        assert systemd.watchdog_every == 1.5
        systemd.close()
        systemd.tell(READY=1)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "3000000"},
        {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "many"},
        {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_manager_that_listens_nothing_happens(environ):
    systemd = Systemd(environ)
    systemd.tell(READY=1)
    assert systemd.watchdog_every is None
    systemd.close()


# --- frames --------------------------------------------------------------------------------------


def test_messages_are_taken_out_whole_however_they_come_in():
    decoder: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica)
    sent: list[ToReplica] = [SPEC, Drain(None), Drain(2.5)]
    buffer, came = bytearray(), []
    for byte in b"".join(packed(each) for each in sent):
        buffer.append(byte)
        came += list(unpacked(buffer, decoder))
    assert came == sent
