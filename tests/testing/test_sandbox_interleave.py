"""Workers that take turns in an order which a seed decides: races are found, and found again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock import State
from penstock.errors import BadOption
from penstock.testing import Sandbox, UnseenFailure
from penstock.testing.interleaving import Interleaver

SEEDS = range(20)


class Account:
    """Two steps where there should be one: what everybody gets wrong once."""

    def __init__(self) -> None:
        self.balance = 0

    async def read(self) -> int:
        await asyncio.sleep(0)
        return self.balance

    async def write(self, balance: int) -> None:
        await asyncio.sleep(0)
        self.balance = balance


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
def deposit(app, account):
    @app.task
    async def deposit(cents: int) -> None:
        balance = await account.read()
        await account.write(balance + cents)

    return deposit


def balance_with(app, account, deposit, seed: int) -> int:
    account.balance = 0
    with Sandbox(app, seed=seed) as t:
        deposit.enqueue_many([(1,), (1,), (1,)])
        assert t.interleave(workers=3).counts == {"succeeded": 3}
    return account.balance


def test_a_race_is_found_by_some_seed_and_again_by_the_same(app, account, deposit):
    found = {seed: balance_with(app, account, deposit, seed) for seed in SEEDS}
    assert 3 in found.values()
    assert min(found.values()) < 3  # an update is lost, in some orders
    again = {seed: balance_with(app, account, deposit, seed) for seed in SEEDS}
    assert again == found


def test_one_worker_alone_has_no_race(app, account, deposit):
    for seed in SEEDS:
        account.balance = 0
        with Sandbox(app, seed=seed) as t:
            deposit.enqueue_many([(1,), (1,), (1,)])
            t.interleave(workers=1)
        assert account.balance == 3


def test_a_lock_makes_it_right_in_every_order(app, account):
    @app.task
    async def deposit(cents: int) -> None:
        async with lock:
            balance = await account.read()
            await account.write(balance + cents)

    for seed in SEEDS:
        account.balance, lock = 0, asyncio.Lock()
        with Sandbox(app, seed=seed) as t:
            deposit.enqueue_many([(1,)] * 5)
            assert t.interleave(workers=5).counts == {"succeeded": 5}
        assert account.balance == 5


async def test_coroutines_of_the_test_take_turns_with_the_workers(app):
    story: list[str] = []

    @app.task
    async def ship(order: int) -> None:
        story.append(f"ship {order}")
        await asyncio.sleep(0)
        story.append(f"shipped {order}")

    async def shop(order: int) -> None:
        await ship.aenqueue(order)
        story.append(f"ordered {order}")

    stories = []
    for seed in (*SEEDS, *SEEDS):
        story.clear()
        async with Sandbox(app, seed=seed) as t:
            drained = await t.ainterleave(shop(1), shop(2), workers=2)
            assert len(drained) == 2
        stories.append(tuple(story))
    half = len(SEEDS)
    assert stories[:half] == stories[half:]
    assert len(set(stories)) > 3
    assert all(len(each) == 6 for each in stories)


async def test_a_result_may_be_awaited_while_workers_take_turns(app):
    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def client(number: int) -> None:
        answers.append(await (await double.aenqueue(number)).aresult(timeout=60))

    answers: list[int] = []
    async with Sandbox(app) as t:
        await t.ainterleave(client(1), client(2), seed=3)
    assert sorted(answers) == [2, 4]


def test_sync_handlers_run_one_at_a_time(app):
    inside = threading.Lock()

    @app.task(retries=None)
    def exclusive() -> None:
        assert inside.acquire(blocking=False)
        inside.release()

    with Sandbox(app) as t:
        exclusive.enqueue_many([()] * 5)
        assert t.interleave(workers=5).counts == {"succeeded": 5}


def test_what_fails_in_a_handler_is_seen_as_ever(app):
    @app.task
    async def broken() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(UnseenFailure, match="ValueError: no"):
        with Sandbox(app) as t:
            broken.enqueue()
            t.interleave()


async def test_what_fails_in_the_test_tells_the_seed(app):
    async def fails() -> None:
        await asyncio.sleep(0)
        raise AssertionError("overdrawn")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    ended: list[bool] = []
    async with Sandbox(app, seed=17) as t:
        with pytest.raises(AssertionError, match="overdrawn") as caught:
            await t.ainterleave(fails(), waits())
    assert caught.value.__notes__ == ["this was an interleaving with seed=17"]
    assert ended == [True]


def test_a_crash_among_workers_is_rescued_as_ever(app, account, deposit):
    with Sandbox(app, seed=1) as t:
        jobs = deposit.enqueue_many([(1,), (1,)])
        t.crash(deposit, "before")
        assert t.interleave().counts == {"crashed": 1, "succeeded": 1}
        t.advance("15s")
        assert {job.status().state for job in jobs} == {State.SUCCEEDED}


def test_a_limit_holds_in_every_order(app):
    @app.task(queue="narrow")
    async def narrow() -> None:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0)
        running.pop()

    for seed in SEEDS:
        running: list[int] = []
        most: list[int] = []
        with Sandbox(app, seed=seed) as t:
            app.set_queue("narrow", max_running=2)
            narrow.enqueue_many([()] * 6)
            t.interleave(workers=4)
        assert max(most) <= 2
        assert len(most) == 6


def test_there_must_be_a_worker(app):
    with Sandbox(app) as t:
        with pytest.raises(BadOption, match="workers"):
            t.interleave(workers=0)


async def test_the_order_of_turns_is_the_seeds():
    async def steps() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    orders = []
    for seed in (1, 1, 2):
        interleaver = Interleaver(seed)
        await interleaver.lead([steps(), steps()])
        orders.append(interleaver.order)
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == [0, 0, 0, 0, 1, 1, 1, 1]
