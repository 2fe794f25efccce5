"""Contested items: tried again by themselves, while the line goes on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.engines.batcher import Batcher
from penstock.errors import EngineClosed, EngineUnavailable, ItemContested, ItemRefused
from penstock.testing.clock import FakeClock


class Post:
    """Where batches go. Answers ``-item``; those in ``locked`` are contested, in ``bad`` refused.

    An item and the one a hundred above want the same thing.
    """

    def __init__(self, *, tells: bool = True) -> None:
        self.tells = tells
        self.batches: list[list[int]] = []
        self.stored: list[int] = []
        self.locked: set[int] = set()
        self.bad: set[int] = set()
        self.faults: list[Exception] = []
        self.door = asyncio.Event()
        self.door.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.door.wait()
        if self.faults:
            raise self.faults.pop()
        for index, item in enumerate(items):
            if item in self.bad:
                raise ItemRefused("the post", f"{item} will not do")
            if item % 100 in self.locked:
                raise ItemContested("the post", f"{item} is locked", index if self.tells else None)
        self.stored += items
        return [-item for item in items]


def batcher(post: Post, clock: FakeClock) -> Batcher[int, int]:
    return Batcher(post, marks=lambda item: [item % 100], clock=clock, name="the post")


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def in_line(batcher: Batcher[int, int], post: Post, items: Sequence[int]) -> list:
    """Put items so that all but the first are one batch."""
    post.door.clear()
    putting = [asyncio.create_task(batcher.put(item)) for item in items]
    await turns()
    post.door.set()
    return putting


async def test_a_contested_item_is_tried_again_until_it_is_free(clock):
    post = Post()
    post.locked = {7}
    putting = asyncio.create_task(batcher(post, clock).put(7))
    for _ in range(5):
        await clock.asleep()
        clock.advance(1)
        await turns()
    assert not putting.done()

    post.locked.clear()
    await clock.asleep()
    clock.advance(1)

    assert await putting == -7
    assert post.batches == [[7]] * 7


async def test_others_are_stored_while_an_item_is_contested(clock):
    """Nothing passes on the clock: whoever is stored has not waited for the contested one."""
    post = Post()
    post.locked = {3}
    line = batcher(post, clock)
    putting = await in_line(line, post, range(6))

    assert await asyncio.gather(*(putting[item] for item in (0, 1, 2, 4, 5))) == [0, -1, -2, -4, -5]
    assert await line.put(9) == -9
    assert not putting[3].done()
    assert post.batches == [[0], [1, 2, 3, 4, 5], [1, 2, 4, 5], [9]]

    post.locked.clear()
    await clock.asleep()
    clock.advance(1)
    assert await putting[3] == -3


async def test_a_store_that_cannot_tell_which_item_it_is_has_its_batch_halved(clock):
    post = Post(tells=False)
    post.locked = {3}
    line = batcher(post, clock)
    putting = await in_line(line, post, range(6))

    assert await asyncio.gather(*(putting[item] for item in (0, 1, 2, 4, 5))) == [0, -1, -2, -4, -5]
    assert not putting[3].done()
    post.locked.clear()
    await line.close()
    assert await putting[3] == -3


async def test_what_wants_the_same_as_a_contested_item_is_not_tried_in_line(clock):
    """Each try costs the line a wait: one is enough to know."""
    post = Post()
    post.locked = {3}
    line = batcher(post, clock)
    first = asyncio.create_task(line.put(3))
    await clock.asleep()

    alone = asyncio.create_task(line.put(103))
    putting = await in_line(line, post, [1, 203, 2, 303])
    assert await putting[0] == -1
    assert await putting[2] == -2
    assert post.batches == [[3], [1], [2]]

    # In a round the first of them is tried for all; when it is free, all are.
    clock.advance(1)
    await turns()
    assert post.batches[3:] == [[3]]
    post.locked.clear()
    await clock.asleep()
    clock.advance(1)
    answers = await asyncio.gather(*(first, alone, putting[1], putting[3]))
    assert answers == [-3, -103, -203, -303]
    assert post.batches[4:] == [[3], [103], [203], [303]]


async def test_in_one_batch_what_wants_the_same_is_taken_out_with_it(clock):
    post = Post()
    post.locked = {3}
    line = batcher(post, clock)
    putting = await in_line(line, post, [0, 3, 1, 103, 2])

    assert [await putting[place] for place in (0, 2, 4)] == [0, -1, -2]
    assert post.batches == [[0], [3, 1, 103, 2], [1, 2]]
    post.locked.clear()
    await line.close()
    assert [await putting[place] for place in (1, 3)] == [-3, -103]


async def test_a_bad_item_beside_a_contested_one_is_refused_alone(clock):
    """Halving meets the contested one again: it is neither sent nor stored twice."""
    post = Post()
    post.locked, post.bad = {2}, {5}
    line = batcher(post, clock)
    putting = await in_line(line, post, range(7))

    assert await asyncio.gather(*(putting[item] for item in (0, 1, 3, 4, 6))) == [0, -1, -3, -4, -6]
    with pytest.raises(ItemRefused, match="5 will not do"):
        await putting[5]
    post.locked.clear()
    await line.close()
    assert await putting[2] == -2
    assert sorted(post.stored) == [0, 1, 2, 3, 4, 6]


async def test_a_caller_who_gives_up_takes_the_item_away(clock):
    post = Post()
    post.locked = {7}
    line = batcher(post, clock)
    putting = asyncio.create_task(line.put(7))
    await clock.asleep()
    putting.cancel()
    await asyncio.wait([putting])

    clock.advance(1)
    await turns()

    assert post.batches == [[7]]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    post.locked.clear()
    assert await line.put(107) == -107


async def test_any_other_error_is_the_callers(clock):
    post = Post()
    post.locked = {7}
    putting = asyncio.create_task(batcher(post, clock).put(7))
    await clock.asleep()
    post.faults = [EngineUnavailable("the post", "gone")]
    clock.advance(1)

    with pytest.raises(EngineUnavailable, match="gone"):
        await putting


async def test_closing_tries_once_more_and_then_says_why_not(clock):
    post = Post()
    post.locked = {7, 8}
    line = batcher(post, clock)
    putting = [asyncio.create_task(line.put(item)) for item in (7, 8)]
    await clock.asleep()
    await turns()
    post.locked = {8}

    await line.close()

    assert await putting[0] == -7
    with pytest.raises(ItemContested) as refused:
        await putting[1]
    assert str(refused.value) == (
        "the post cannot store this yet: 8 is locked; try again when that transaction has ended, "
        "or look for one that was left open"
    )
    with pytest.raises(EngineClosed):
        await line.put(7)


async def test_if_the_rounds_are_cut_short_nobody_is_left_waiting(clock):
    post = Post()
    post.locked = {7}
    putting = asyncio.create_task(batcher(post, clock).put(7))
    await clock.asleep()
    (rounds,) = [task for task in asyncio.all_tasks() if task.get_name() == "penstock contested"]
    rounds.cancel()

    with pytest.raises(EngineUnavailable, match="cut short"):
        await putting
