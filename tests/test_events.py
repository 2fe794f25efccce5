"""The bus: who hears what, and that nobody can disturb it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import msgspec
import pytest

from penstock import events
from penstock.events import (
    AttemptEnded,
    Bus,
    Event,
    Failed,
    JobEvent,
    Succeeded,
    WorkerEvent,
    WorkerJoined,
    WorkerLeft,
)


def succeeded(job: str = "a") -> Succeeded:
    return Succeeded(at=1.0, job=job, task="mail.send", attempt=1, worker="w", duration=0.5)


def failed(job: str = "a") -> Failed:
    return Failed(at=1.0, job=job, attempt=1, error="ValueError: no")


def left() -> WorkerLeft:
    return WorkerLeft(at=1.0, worker="w")


@pytest.fixture
def bus():
    return Bus()


# --- records ------------------------------------------------------------------------------------


def test_events_are_frozen():
    with pytest.raises(AttributeError):
        succeeded().job = "b"  # type: ignore[misc]


def test_an_event_becomes_json_that_says_what_it_is():
    line = msgspec.json.decode(msgspec.json.encode(succeeded()))

    assert line["type"] == "Succeeded"
    assert (line["job"], line["task"], line["duration"]) == ("a", "mail.send", 0.5)


# --- who hears what -----------------------------------------------------------------------------


def test_a_listener_hears_the_kind_it_asked_for(bus):
    heard: list[Event] = []
    bus.subscribe(Succeeded, heard.append)

    bus.publish(succeeded())
    bus.publish(failed())

    assert heard == [succeeded()]


def test_a_listener_of_a_base_class_hears_every_kind_below_it(bus):
    heard: list[Event] = []
    bus.subscribe(JobEvent, heard.append)

    for event in (succeeded(), failed(), left()):
        bus.publish(event)

    assert heard == [succeeded(), failed()]


@pytest.mark.parametrize("everything", [None, Event])
def test_a_listener_of_everything_hears_everything(bus, everything):
    heard: list[Event] = []
    bus.subscribe(everything, heard.append)

    bus.publish(succeeded())
    bus.publish(left())

    assert heard == [succeeded(), left()]


def test_a_listener_of_several_kinds_hears_each_event_once(bus):
    heard: list[Event] = []
    bus.subscribe((Succeeded, JobEvent, WorkerLeft), heard.append)

    bus.publish(succeeded())
    bus.publish(left())

    assert heard == [succeeded(), left()]


def test_listeners_hear_in_the_order_they_subscribed(bus):
    order: list[int] = []
    for number in range(5):
        bus.subscribe(None, lambda event, number=number: order.append(number))

    bus.publish(left())

    assert order == [0, 1, 2, 3, 4]


def test_after_unsubscribing_a_listener_hears_nothing(bus):
    heard: list[Event] = []
    unsubscribe = bus.subscribe(Succeeded, heard.append)
    bus.publish(succeeded())

    unsubscribe()
    unsubscribe()
    bus.publish(succeeded())

    assert heard == [succeeded()]


def test_a_listener_that_subscribed_twice_can_end_one_subscription(bus):
    heard: list[Event] = []
    bus.subscribe(Succeeded, heard.append)
    bus.subscribe(Succeeded, heard.append)()

    bus.publish(succeeded())

    assert heard == [succeeded()]


def test_a_listener_may_unsubscribe_while_it_is_told(bus):
    heard: list[Event] = []

    def once(event: Event) -> None:
        heard.append(event)
        unsubscribe()

    unsubscribe = bus.subscribe(None, once)
    bus.publish(left())
    bus.publish(left())

    assert heard == [left()]


# --- wants --------------------------------------------------------------------------------------


def test_nothing_is_wanted_of_a_bus_without_listeners(bus):
    assert not bus.wants(Event)
    assert not bus.wants(Succeeded)


def test_a_kind_is_wanted_by_its_own_listeners_and_those_of_its_bases(bus):
    bus.subscribe(AttemptEnded, print)

    assert bus.wants(Succeeded)
    assert not bus.wants(WorkerJoined)


def test_a_base_is_wanted_if_anything_below_it_is(bus):
    bus.subscribe(Succeeded, print)

    assert bus.wants(AttemptEnded)
    assert bus.wants(JobEvent)
    assert not bus.wants(Failed)
    assert not bus.wants(WorkerEvent)


def test_what_is_wanted_follows_the_subscriptions(bus):
    assert not bus.wants(Succeeded)
    unsubscribe = bus.subscribe(Succeeded, print)
    assert bus.wants(Succeeded)
    unsubscribe()
    assert not bus.wants(Succeeded)


# --- listeners that misbehave -------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()])
def test_a_listener_that_raises_is_logged_and_disturbs_nobody(bus, caplog, error):
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise error

    bus.subscribe(None, broken)
    bus.subscribe(None, heard.append)

    bus.publish(left())

    assert heard == [left()]
    (record,) = caplog.records
    assert record.name == "penstock"
    assert record.levelno == logging.ERROR
    assert record.message.startswith("listener failed listener='test_events.")
    assert "WorkerLeft" in record.message
    assert record.exc_info is not None
    assert record.exc_info[1] is error


# --- async listeners ----------------------------------------------------------------------------


async def test_an_async_listener_runs_on_the_loop_that_publishes(bus):
    heard: list[tuple[Event, asyncio.AbstractEventLoop]] = []

    async def listener(event: Event) -> None:
        heard.append((event, asyncio.get_running_loop()))

    bus.subscribe(Succeeded, listener)
    bus.publish(succeeded("a"))
    bus.publish(succeeded("b"))
    assert heard == []

    await bus.drain()

    here = asyncio.get_running_loop()
    assert heard == [(succeeded("a"), here), (succeeded("b"), here)]


async def test_an_async_listener_that_raises_is_logged(bus, caplog):
    async def broken(event: Event) -> None:
        raise ValueError("broken")

    bus.subscribe(None, broken)
    bus.publish(left())
    await bus.drain()

    (record,) = caplog.records
    assert record.message.startswith("listener failed listener='test_events.")
    assert isinstance(record.exc_info[1], ValueError)


def test_an_async_listener_is_refused_where_no_loop_runs(bus, caplog):
    heard: list[Event] = []

    async def listener(event: Event) -> None:
        heard.append(event)

    bus.subscribe(None, listener)
    bus.subscribe(None, heard.append)
    bus.publish(left())

    assert heard == [left()]
    (record,) = caplog.records
    assert record.message.startswith("listener refused listener='test_events.")
    assert "no running loop; subscribe a plain function" in record.message


async def test_draining_waits_for_listeners_that_publish_themselves(bus):
    heard: list[Event] = []

    async def forward(event: Event) -> None:
        await asyncio.sleep(0)
        bus.publish(succeeded())

    async def listen(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(event)

    bus.subscribe(WorkerLeft, forward)
    bus.subscribe(Succeeded, listen)
    bus.publish(left())

    await bus.drain()

    assert heard == [succeeded()]


async def test_events_pass_async_listeners_by_that_are_too_slow(bus, caplog, monkeypatch):
    monkeypatch.setattr(events, "MAX_UNFINISHED", 3)
    started: list[Event] = []
    go = asyncio.Event()

    async def slow(event: Event) -> None:
        started.append(event)
        await go.wait()

    bus.subscribe(None, slow)
    for _ in range(10):
        bus.publish(left())
    go.set()
    await bus.drain()

    assert len(started) == 3
    (record,) = caplog.records
    assert record.message.startswith("listeners too slow listener='test_events.")

    bus.publish(left())
    await bus.drain()
    assert len(started) == 4


# --- threads ------------------------------------------------------------------------------------


@pytest.fixture
def hurried():
    """Threads change places all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_publishing_and_subscribing_from_many_threads_loses_nothing(bus):
    """Each thread's own listener hears exactly what was published while it listened."""
    threads, rounds = 8, 300
    everything: list[Event] = []
    missed: list[str] = []
    bus.subscribe(Succeeded, everything.append)
    start = threading.Barrier(threads)

    def busy(number: int) -> None:
        start.wait()
        for round in range(rounds):
            mine = f"{number}-{round}"
            heard: list[str] = []
            unsubscribe = bus.subscribe(
                Succeeded, lambda event, heard=heard: heard.append(event.job)
            )
            bus.publish(succeeded(mine))
            unsubscribe()
            if mine not in heard:
                missed.append(mine)

    workers = [threading.Thread(target=busy, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert missed == []
    assert len(everything) == threads * rounds
    assert bus.wants(Succeeded)
