"""The batcher: group commit without a timer, and nobody left without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engines.batcher import Batcher, halved
from penstock.errors import EngineClosed, EngineFull, EngineUnavailable, ItemRefused


class Post:
    """Where batches go: one at a time, each when the test says so. Answers ``-item``.

    Items in ``bad`` are refused; ``faults`` are raised by the sends of these numbers, from 0 on,
    and ``doors`` hold them back instead of the common door.
    """

    def __init__(self, *, is_open: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.stored: list[int] = []
        self.bad: set[int] = set()
        self.faults: dict[int, BaseException] = {}
        self.sending = 0
        self.begun = asyncio.Event()
        self.door = asyncio.Event()
        self.doors: dict[int, asyncio.Event] = {}
        if is_open:
            self.door.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        assert self.sending == 0, "two sends in flight"
        self.sending += 1
        number = len(self.batches)
        self.batches.append(list(items))
        self.begun.set()
        try:
            await self.doors.get(number, self.door).wait()
            if number in self.faults:
                raise self.faults[number]
            if refused := self.bad.intersection(items):
                raise ItemRefused("the post", f"{sorted(refused)} will not do")
            self.stored += items
            return [-item for item in items]
        finally:
            self.sending -= 1


async def turns(count: int = 10) -> None:
    """Let everything that can run now run."""
    for _ in range(count):
        await asyncio.sleep(0)


def tasks() -> set[asyncio.Task]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def filled(post: Post, batcher: Batcher, items: Sequence[int]) -> list[asyncio.Task]:
    """Put items while the first of them is held in flight at the closed door."""
    putting = [asyncio.create_task(batcher.put(item)) for item in items]
    await post.begun.wait()
    await turns()
    return putting


# --- batching -----------------------------------------------------------------------------------


async def test_a_put_that_finds_nothing_in_flight_is_sent_at_once_without_a_task():
    post = Post()
    batcher = Batcher(post)
    putting = batcher.put(1)

    with pytest.raises(StopIteration) as answered:
        putting.send(None)  # the first step of the coroutine, without any loop turning

    assert answered.value.value == -1
    assert post.batches == [[1]]
    assert tasks() == set()


async def test_what_arrives_while_a_batch_is_in_flight_is_the_next_batch():
    post = Post(is_open=False)
    batcher = Batcher(post)
    putting = await filled(post, batcher, range(6))
    assert post.batches == [[0]]

    post.door.set()

    assert await asyncio.gather(*putting) == [0, -1, -2, -3, -4, -5]
    assert post.batches == [[0], [1, 2, 3, 4, 5]]


async def test_no_task_is_left_when_the_line_is_empty():
    post = Post(is_open=False)
    batcher = Batcher(post)
    putting = await filled(post, batcher, range(3))
    post.door.set()
    await asyncio.gather(*putting)
    await turns()

    assert tasks() == set()
    assert await batcher.put(9) == -9


async def test_callers_that_come_back_at_once_share_one_batch():
    """Those answered by one batch join the next one, with those who waited for it meanwhile."""
    sizes: list[int] = []
    is_sending = asyncio.Event()

    async def send(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        if len(items) > 1:
            is_sending.set()
        await turns(5)
        return items

    async def caller(number: int) -> None:
        for _ in range(10):
            await batcher.put(number)

    batcher: Batcher[int, int] = Batcher(send)
    early = [asyncio.create_task(caller(number)) for number in range(5)]
    await is_sending.wait()
    late = [asyncio.create_task(caller(number)) for number in range(5)]
    await asyncio.gather(*early, *late)

    assert len(sizes) <= 13, "two groups of callers took turns"


async def test_a_batch_has_at_most_so_many_items():
    post = Post(is_open=False)
    batcher = Batcher(post, max_items=4)
    putting = await filled(post, batcher, range(11))
    post.door.set()
    await asyncio.gather(*putting)

    assert post.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


async def test_a_batch_has_at_most_so_many_bytes_and_a_heavier_item_goes_alone():
    post = Post(is_open=False)
    batcher = Batcher(post, max_bytes=10, weigh=lambda item: item)
    putting = await filled(post, batcher, [1, 4, 6, 5, 100, 3, 3, 3, 3])
    post.door.set()
    await asyncio.gather(*putting)

    assert post.batches == [[1], [4, 6], [5], [100], [3, 3, 3], [3]]


async def test_an_item_that_cannot_be_weighed_is_its_callers_error_alone():
    post = Post(is_open=False)
    batcher = Batcher(post, weigh=lambda item: 10 // item)
    putting = await filled(post, batcher, [1, 2, 0, 3])
    post.door.set()
    first, second, broken, third = await asyncio.gather(*putting, return_exceptions=True)

    assert (first, second, third) == (-1, -2, -3)
    assert isinstance(broken, ZeroDivisionError)


# --- callers that go ----------------------------------------------------------------------------


async def test_an_item_whose_caller_is_cancelled_in_time_is_not_sent():
    post = Post(is_open=False)
    batcher = Batcher(post)
    first, gone, stays = await filled(post, batcher, [1, 2, 3])
    gone.cancel()
    post.door.set()

    assert await stays == -3
    assert await first == -1
    assert post.stored == [1, 3]


# --- refusals -----------------------------------------------------------------------------------


async def test_halving_finds_every_culprit_and_stores_everything_else():
    post = Post()
    post.bad = {3, 4, 9}

    answers = await halved(post, list(range(10)))

    assert [answer for answer in answers if isinstance(answer, int)] == [0, -1, -2, -5, -6, -7, -8]
    assert [i for i, answer in enumerate(answers) if isinstance(answer, ItemRefused)] == [3, 4, 9]
    assert post.stored == [0, 1, 2, 5, 6, 7, 8]


async def test_halving_stops_at_any_other_error():
    post = Post()
    post.bad = {0}
    post.faults = {1: EngineFull("the post", "no room")}

    with pytest.raises(EngineFull):
        await halved(post, [0, 1, 2, 3])

    assert post.batches == [[0, 1, 2, 3], [0, 1]]


async def test_only_the_caller_of_a_refused_item_gets_the_error():
    post = Post(is_open=False)
    post.bad = {5}
    batcher = Batcher(post)
    putting = await filled(post, batcher, range(9))
    post.door.set()
    answers = await asyncio.gather(*putting, return_exceptions=True)

    assert [a for a in answers if isinstance(a, int)] == [0, -1, -2, -3, -4, -6, -7, -8]
    assert isinstance(answers[5], ItemRefused)
    assert post.stored == [0, 1, 2, 3, 4, 6, 7, 8]


async def test_a_refused_item_that_was_sent_alone_is_told_so():
    post = Post()
    post.bad = {5}
    batcher = Batcher(post)

    with pytest.raises(ItemRefused):
        await batcher.put(5)

    assert await batcher.put(6) == -6


async def test_a_fault_while_halving_leaves_the_answers_that_are_known():
    post = Post(is_open=False)
    post.bad = {4}
    post.faults = {3: EngineUnavailable("the post", "gone")}
    batcher = Batcher(post)
    putting = await filled(post, batcher, [0, 1, 2, 3, 4])
    post.door.set()
    answers = await asyncio.gather(*putting, return_exceptions=True)

    assert post.batches == [[0], [1, 2, 3, 4], [1, 2], [3, 4]]
    assert answers[:3] == [0, -1, -2]
    assert [type(answer) for answer in answers[3:]] == [EngineUnavailable, EngineUnavailable]


# --- faults -------------------------------------------------------------------------------------


async def test_any_other_error_goes_to_every_caller_of_that_batch_and_no_other():
    post = Post(is_open=False)
    batcher = Batcher(post, max_items=2)
    post.faults = {1: EngineFull("the post", "no room")}
    putting = await filled(post, batcher, range(5))
    post.door.set()
    answers = await asyncio.gather(*putting, return_exceptions=True)

    assert [type(answer) for answer in answers] == [int, EngineFull, EngineFull, int, int]


async def test_too_few_answers_are_an_error_for_every_caller():
    async def short(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)
        return [0]

    batcher: Batcher[int, int] = Batcher(short)
    answers = await asyncio.gather(*map(batcher.put, range(4)), return_exceptions=True)

    assert answers[0] == 0
    assert [str(answer) for answer in answers[1:]] == ["3 items were sent, 1 answers came back"] * 3


async def test_a_cancelled_caller_in_flight_does_not_disturb_those_behind_it():
    post = Post(is_open=False)
    batcher = Batcher(post)
    putting = await filled(post, batcher, [1, 2, 3])

    putting[0].cancel()
    post.door.set()
    first, *others = await asyncio.gather(*putting, return_exceptions=True)

    assert isinstance(first, asyncio.CancelledError)
    assert others == [-2, -3]


async def test_a_cancelled_caller_of_a_batch_does_not_disturb_its_neighbours():
    post = Post(is_open=False)
    batcher = Batcher(post)
    putting = await filled(post, batcher, [1])
    cancelled, *neighbours = [asyncio.create_task(batcher.put(item)) for item in (2, 3, 4, 5)]
    await turns()
    post.doors[1] = asyncio.Event()
    post.door.set()
    await putting[0]
    await turns()
    assert post.batches == [[1], [2, 3, 4, 5]]
    assert post.stored == [1]

    cancelled.cancel()
    post.doors[1].set()

    assert await asyncio.gather(*neighbours) == [-3, -4, -5]
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await batcher.put(6) == -6


async def test_a_send_that_was_cancelled_by_the_store_is_a_fault_not_a_cancellation():
    post = Post(is_open=False)
    batcher = Batcher(post, max_items=2)
    putting = await filled(post, batcher, range(5))
    post.faults = {0: asyncio.CancelledError(), 1: asyncio.CancelledError()}
    post.door.set()
    answers = await asyncio.gather(*putting, return_exceptions=True)

    assert [type(answer) for answer in answers] == [*[EngineUnavailable] * 3, int, int]
    assert "was cut short (CancelledError()) and may have happened" in str(answers[1])


@pytest.mark.parametrize("is_started", [True, False])
async def test_if_the_flusher_is_cancelled_no_caller_is_left_waiting(is_started, monkeypatch):
    post = Post(is_open=False)
    batcher = Batcher(post, max_items=2)
    first, *others = await filled(post, batcher, range(6))
    go_on = batcher._go_on

    def cancelled() -> None:
        go_on()
        if batcher._flusher is not None:
            monkeypatch.undo()
            batcher._flusher.cancel()

    if is_started:
        post.doors[1] = asyncio.Event()
        post.begun.clear()
        post.door.set()
        await post.begun.wait()
        assert batcher._flusher is not None
        batcher._flusher.cancel()
    else:
        monkeypatch.setattr(batcher, "_go_on", cancelled)
        post.door.set()
    results = await asyncio.gather(*others, return_exceptions=True)

    assert await first == 0
    assert [type(result) for result in results] == [EngineUnavailable] * 5
    assert await batcher.put(7) == -7
    await batcher.close()


def test_if_the_loop_is_torn_down_no_caller_is_left_waiting():
    """A send that raises KeyboardInterrupt takes the loop along, and every future is answered."""
    answers: list[asyncio.Future[int]] = []

    async def main() -> None:
        post = Post(is_open=False)
        post.faults = {1: KeyboardInterrupt()}
        batcher = Batcher(post, max_items=2)
        (first,) = await filled(post, batcher, [0])
        # Not by ``put``, whose task would be cancelled with the loop.
        answers.extend(batcher._enter(item) for item in range(1, 6))
        post.door.set()
        await first
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())

    assert [type(answer.exception()) for answer in answers] == [EngineUnavailable] * 5


# --- close --------------------------------------------------------------------------------------


async def test_closing_sends_what_is_in_line_then_refuses():
    post = Post(is_open=False)
    batcher = Batcher(post, max_items=2, name="the outbox")
    putting = await filled(post, batcher, range(5))
    closing = [asyncio.create_task(batcher.close()) for _ in range(2)]
    await turns()
    assert not any(each.done() for each in closing)

    with pytest.raises(EngineClosed) as refused:
        await batcher.put(9)
    post.door.set()
    await asyncio.gather(*closing)

    assert all(each.done() for each in putting)
    assert post.stored == [0, 1, 2, 3, 4]
    assert str(refused.value) == (
        "the outbox is not open; open it first, or do not use it after close"
    )
    await batcher.close()
    with pytest.raises(EngineClosed):
        await batcher.put(9)


async def test_closing_an_idle_batcher_ends_at_once():
    batcher = Batcher(Post())
    await batcher.close()

    with pytest.raises(EngineClosed):
        await batcher.put(1)


# --- everything at once -------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 8)),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("turn"), st.integers(1, 6)),
        st.tuples(st.just("step"), st.integers(1, 3)),
        st.tuples(st.just("fault"), st.integers(0, 4)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(ACTIONS, st.sets(st.integers(0, 60), max_size=8), st.integers(1, 5), st.integers(1, 12))
def test_each_item_gets_exactly_one_answer_and_it_is_its_own(actions, bad, max_items, max_bytes):
    asyncio.run(play(actions, bad, max_items, max_bytes))


async def play(actions, bad: set[int], max_items: int, max_bytes: int) -> None:
    """Do what the script says; then open the door and hold every caller's answer against what
    was really sent."""
    post = Post(is_open=False)
    post.bad = bad
    line: dict[int, int] = {}

    def weigh(item: int) -> int:
        line[item] = len(line)
        return item % 5

    batcher = Batcher(post, max_items=max_items, max_bytes=max_bytes, weigh=weigh)
    callers: list[asyncio.Future[int]] = []
    for action, number in actions:
        match action:
            case "put":
                for _ in range(number):
                    item = len(callers)
                    callers.append(asyncio.ensure_future(batcher.put(item)))
            case "cancel" if number < len(callers):
                callers[number].cancel()
            case "turn":
                await turns(number)
            case "step":
                for _ in range(number):
                    post.door.set()
                    await asyncio.sleep(0)
                    post.door.clear()
            case "fault":
                post.faults[len(post.batches) + number] = EngineUnavailable("the post", "gone")
    # A task that has not run yet has put nothing: let all of them in before the door closes.
    await turns()
    post.door.set()
    await batcher.close()
    answers = await asyncio.gather(*callers, return_exceptions=True)

    assert len(set(post.stored)) == len(post.stored), "an item was stored twice"
    for item, answer in enumerate(answers):
        match answer:
            case int():
                assert answer == -item
                assert item in post.stored
            case ItemRefused():
                assert item in bad
                assert item not in post.stored
            case EngineUnavailable():
                assert item not in post.stored
            case _:
                assert isinstance(answer, asyncio.CancelledError)
    places = [line[item] for item in post.stored if item in line]
    assert places == sorted(places), "an item overtook another"
    for batch in post.batches:
        assert len(batch) <= max_items
        assert len(batch) == 1 or sum(item % 5 for item in batch) <= max_bytes
    assert tasks() == set()


async def test_ten_thousand_puts_at_once_cost_few_sends():
    post = Post(is_open=False)
    batcher = Batcher(post, max_items=1000)
    putting = await filled(post, batcher, range(10_000))
    post.door.set()

    assert await asyncio.gather(*putting) == [-item for item in range(10_000)]
    assert post.stored == list(range(10_000))
    assert len(post.batches) == 11
