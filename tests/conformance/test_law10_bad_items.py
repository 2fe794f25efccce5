"""Law 10: one bad item never fails its neighbours: its batch is refused whole, to be halved."""

from __future__ import annotations

import pytest

from conformance.steps import (
    ask,
    claim,
    draft,
    enqueue_jobs,
    everything,
    finished,
    ids,
    joined,
    outcome,
    put,
    send,
    stored,
)
from penstock.core.job import ErrorRecord, Hold, State, Verdict
from penstock.engines import changes
from penstock.engines.records import Filter, QueueSettings
from penstock.errors import ItemRefused

NO_TEXT = "half a pair: \ud800"
"""Text that no encoding can write."""

BAD_DRAFTS = [
    {"id": NO_TEXT},
    {"task": NO_TEXT},
    {"queue": NO_TEXT},
    {"key": NO_TEXT},
    {"unique": NO_TEXT},
    {"name": NO_TEXT},
    {"tags": ("fine", NO_TEXT)},
    {"correlation_id": NO_TEXT},
    {"enqueued_by": NO_TEXT},
    {"priority": 1 << 80},
]

CRASH = ErrorRecord(attempt=1, at=0.0, kind="ValueError", message=NO_TEXT)

BAD_OUTCOMES = [
    {"kind": "failed", "reason": NO_TEXT},
    {"kind": "failed", "error": CRASH},
    {"kind": "retry", "reason": NO_TEXT},
    {"kind": "cancelled", "reason": NO_TEXT},
    {"kind": "released", "hold": Hold.RATE, "hold_cause": NO_TEXT, "delay": 60},
]


def named(case):
    return "-".join(case)


@pytest.mark.parametrize("bad", BAD_DRAFTS, ids=named)
async def test_a_batch_with_an_unstorable_draft_is_refused_whole(engine, bad):
    fine = draft("fine", remember=3600, unique="key")
    with pytest.raises(ItemRefused):
        await engine.enqueue([fine, draft(**bad), draft()])
    assert await everything(engine) == ()
    # Neither the ledger nor the unique key remembers anything of it.
    (receipt,) = await engine.enqueue([fine])
    assert receipt.created


@pytest.mark.parametrize("bad", BAD_DRAFTS, ids=named)
async def test_halving_a_refused_batch_leaves_only_the_culprit_out(engine, bad):
    batch = [draft(), draft(), draft(**bad), draft(), draft()]

    async def halved(drafts):
        try:
            await engine.enqueue(drafts)
        except ItemRefused:
            if len(drafts) == 1:
                return drafts
            middle = len(drafts) // 2
            return await halved(drafts[:middle]) + await halved(drafts[middle:])
        return []

    assert await halved(batch) == [batch[2]]
    assert len(await everything(engine)) == 4


@pytest.mark.parametrize("bad", BAD_OUTCOMES, ids=named)
async def test_an_exchange_with_an_unstorable_outcome_writes_nothing(engine, store, bad):
    await enqueue_jobs(engine, 4)
    worker = await joined(engine)
    first, second, third = await claim(engine, worker=worker, want=3, slots=2)
    await put(engine, delay=60)
    store.clock.advance(61)
    before = await everything(engine)
    turn = ask(
        worker,
        want=5,
        begun=((third.id, 1),),
        outcomes=(outcome(first, "succeeded"), outcome(second, **bad)),
    )
    with pytest.raises(ItemRefused):
        await engine.exchange(turn)
    assert await everything(engine) == before


@pytest.mark.parametrize("bad", BAD_OUTCOMES, ids=named)
async def test_the_other_outcomes_can_be_settled_without_the_bad_one(engine, bad):
    await enqueue_jobs(engine, 2)
    worker = await joined(engine)
    first, second = await claim(engine, worker=worker, want=2)
    with pytest.raises(ItemRefused):
        await engine.exchange(
            ask(worker, outcomes=(outcome(second, **bad), outcome(first, "succeeded")))
        )
    answer = await engine.exchange(ask(worker, outcomes=(outcome(first, "succeeded"),)))
    assert answer.verdicts == (Verdict.DONE,)
    assert (await stored(engine, first.id)).state is State.SUCCEEDED
    assert await stored(engine, second.id) == second


async def test_the_refusal_says_what_to_do(engine):
    with pytest.raises(ItemRefused) as caught:
        await engine.enqueue([draft(task=NO_TEXT)])
    assert str(caught.value).endswith("change the value")


async def test_a_refusal_does_not_break_the_handle(engine):
    with pytest.raises(ItemRefused):
        await engine.enqueue([draft(task=NO_TEXT)])
    id = await put(engine)
    assert (await stored(engine, id)).state is State.READY


STRANGE = [
    "",
    " ",
    "ключ",
    "🜁",
    "a\nb",
    "'; drop table job; --",
    "%_",
    "\\",
    "x" * 1_000,
    '"',
    ",",
]


@pytest.mark.parametrize("text", STRANGE, ids=range(len(STRANGE)))
async def test_strange_text_is_stored_as_it_is(engine, text):
    fields = {"queue": text, "key": text, "unique": text, "name": text, "correlation_id": text}
    await put(engine, "id" + text, task=text, tags=(text, "b"), enqueued_by=text, **fields)
    job = await stored(engine, "id" + text)
    assert {name: getattr(job, name) for name in fields} == fields
    assert (job.task, job.tags, job.enqueued_by) == (text, (text, "b"), text)
    (claimed,) = await claim(engine, text)
    assert claimed.id == job.id


@pytest.mark.parametrize("payload", [b"", b"{}", b"\x00\xff\x00", bytes(300_000)], ids=len)
async def test_a_payload_is_stored_byte_by_byte(engine, payload):
    id = await put(engine, payload=payload)
    assert (await stored(engine, id)).payload == payload


async def test_nothing_to_store_is_no_error(engine):
    assert await engine.enqueue([]) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    "field",
    ["delay", "run_at", "expires_in", "remember", "unique_for", "keep", "keep_failed"],
)
async def test_a_time_that_never_comes_is_refused(engine, field, value):
    with pytest.raises(ItemRefused, match="finite"):
        await engine.enqueue([draft("a"), draft("b", unique="k", **{field: value})])
    assert await everything(engine) == ()


@pytest.mark.parametrize("field", ["keep", "keep_failed"])
@pytest.mark.parametrize("keep", [-1.0, 1.1e10, 1e300])
async def test_a_job_that_could_not_be_kept_so_long_is_refused(engine, field, keep):
    """Before it runs: it could never end."""
    with pytest.raises(ItemRefused, match="kept for"):
        await engine.enqueue([draft("a"), draft("b", **{field: keep})])
    assert await everything(engine) == ()


@pytest.mark.parametrize("keep", [0.0, 1.0, 1e10])
async def test_a_job_that_is_kept_for_a_short_or_a_long_time_ends_as_any_other(engine, keep):
    job = await finished(engine, "succeeded", keep=keep)
    assert (job.state, job.keep) == (State.SUCCEEDED, keep)
    job = await finished(engine, "failed", keep_failed=keep)
    assert (job.state, job.keep_failed) == (State.FAILED, keep)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("kind", ["retry", "snooze", "released"])
async def test_an_attempt_cannot_wait_for_a_time_that_never_comes(engine, kind, value):
    id = await put(engine)
    (job,) = await claim(engine)
    hold = {"hold": Hold.BREAKER} if kind == "released" else {}
    with pytest.raises(ItemRefused, match="wait"):
        await send(engine, job.worker, outcome(job, kind, delay=value, **hold))
    assert (await stored(engine, id)) == job


@pytest.mark.parametrize("priority", [1 << 63, -(1 << 63) - 1])
async def test_a_number_over_64_bits_is_refused(engine, priority):
    with pytest.raises(ItemRefused, match=r"64 bits"):
        await engine.enqueue([draft(priority=priority)])
    assert await everything(engine) == ()


CUT_SHORT = "a\0b"
TEXTS = ["id", "task", "queue", "key", "unique", "name", "correlation_id", "enqueued_by"]


@pytest.mark.parametrize("field", TEXTS)
async def test_text_that_a_store_could_cut_short_is_refused(engine, field):
    with pytest.raises(ItemRefused, match="NUL"):
        await engine.enqueue([draft(**{field: CUT_SHORT})])
    with pytest.raises(ItemRefused, match="NUL"):
        await engine.enqueue([draft(tags=("x", CUT_SHORT))])
    assert await everything(engine) == ()


async def test_text_that_a_store_could_cut_short_finds_nothing_else(engine):
    await put(engine, "a", task="a", queue="a", key="a", tags=("a",))
    assert await engine.get([CUT_SHORT]) == [None]
    cut = (CUT_SHORT,)
    for which in (Filter(ids=cut), Filter(queues=cut), Filter(tasks=cut), Filter(keys=cut)):
        assert (await engine.find(which, None, 10)).jobs == ()
        assert (await engine.purge(which, 10)).jobs == 0
    assert len(await claim(engine, "a", avoid=frozenset({CUT_SHORT}))) == 1


@pytest.mark.parametrize("delay", [0, 10])
@pytest.mark.parametrize("field", ["key", "queue"])
async def test_a_name_that_is_too_long_for_a_key_line_is_refused(engine, store, field, delay):
    """A job that could be stored, but not stand in its line, would stop every claim."""
    await engine.set_queue("default", QueueSettings(fair=True))
    long = "".join(chr(0x4E00 + number % 20_000) for number in range(400))
    with pytest.raises(ItemRefused, match=f"has a {field} of more than 1000 bytes"):
        await engine.enqueue([draft(delay=delay, **{field: long})])
    id = await put(engine, key=long[:333], delay=delay)
    with pytest.raises(ItemRefused, match="has a queue of more than 1000 bytes"):
        await changes.edit(engine, [id], queue=long)
    store.clock.advance(20)
    assert ids(await claim(engine)) == [id]
