"""Slots per queue: a worker never has more jobs of a queue than it may, and fills its others."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from penstock.config import Settings
from penstock.core.job import State
from penstock.errors import BadOption
from penstock.hosting import worker_settings
from penstock.worker.settings import WorkerSettings
from worker.rig import specs


async def test_a_queue_has_no_more_than_its_slots_while_others_have_more(rig):
    go, most, now = asyncio.Event(), Counter[str](), Counter[str]()
    all_began = asyncio.Event()

    async def mail() -> None:
        await work("mail")

    async def other() -> None:
        await work("default")

    async def work(queue: str) -> None:
        now[queue] += 1
        most[queue] = max(most[queue], now[queue])
        if now == {"mail": 2, "default": 5}:
            all_began.set()
        await go.wait()
        now[queue] -= 1

    slots = {"mail": 2, "default": 5}
    mails = [await rig.put("mail", queue="mail") for _ in range(12)]
    others = [await rig.put("other") for _ in range(12)]
    async with rig.working(
        specs(mail, other), queues=("mail", "default"), queue_slots=slots
    ) as worker:
        async with asyncio.timeout(20):
            await all_began.wait()
        running = [each for each in await rig.engine.running() if each.worker == worker.id]
        assert {each.queue: each.jobs for each in running} == slots
        go.set()
        jobs = await rig.ended(*mails, *others)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert most == slots


async def test_a_queue_without_slots_of_its_own_may_have_all(rig):
    go, began = asyncio.Event(), Counter[str]()
    all_began = asyncio.Event()

    async def mail() -> None:
        began["mail"] += 1
        await go.wait()

    async def other() -> None:
        began["default"] += 1
        if began["default"] == 9:
            all_began.set()
        await go.wait()

    for _ in range(5):
        await rig.put("mail", queue="mail")
    for _ in range(9):
        await rig.put("other")
    async with rig.working(
        specs(mail, other),
        concurrency=10,
        queues=("mail", "default"),
        queue_slots={"mail": 1},
    ):
        async with asyncio.timeout(20):
            await all_began.wait()
        assert began == {"mail": 1, "default": 9}
        go.set()


@pytest.mark.parametrize(
    ("given", "queues", "slots"),
    [
        ({"queues": "mail=5,default"}, ("mail", "default"), {"mail": 5}),
        ({"queues": {"mail": 5, "default": 20}}, ("mail", "default"), {"mail": 5, "default": 20}),
        ({"queues": ["mail", "default"]}, ("mail", "default"), {}),
        ({"exclude_queues": "mail"}, ("default", "bulk"), {}),
        ({"queues": "mail=5,bulk=2", "exclude_queues": ["bulk"]}, ("mail",), {"mail": 5}),
    ],
)
def test_queues_are_given_with_slots_or_left_out(given, queues, slots):
    found = worker_settings(given, Settings(), ("default", "mail", "bulk"))
    assert (found.queues, found.queue_slots) == (queues, slots)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"queues": "mail=0"}, "give queues such as mail=5,default=20"),
        ({"queues": "mail=many"}, "give queues such as mail=5,default=20"),
        ({"exclude_queues": "mail=5"}, "give queues such as mail,default"),
        ({"exclude_queues": "mial"}, "'mial' is not a queue of this worker; there are default, ma"),
        ({"queues": "mail", "exclude_queues": "mail"}, "no queue is left to serve; exclude fewer"),
    ],
)
def test_queues_that_cannot_be_meant_are_refused(given, why):
    with pytest.raises(BadOption) as refused:
        worker_settings(given, Settings(), ("default", "mail"))
    assert why in str(refused.value)


def test_slots_of_a_queue_that_is_not_served_are_refused():
    with pytest.raises(BadOption, match="it is not one of the queues"):
        WorkerSettings(queues=("default",), queue_slots={"mail": 1})
