"""Drafts as columns: whatever is in them, the server finds what was meant, at a bounded cost."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from conformance.steps import claim_one, created, draft, finished, known, put, settle, stored
from penstock.core.job import Draft, DraftBatch
from penstock.engines import reads
from penstock.engines.postgres.draft_columns import parts, to_columns
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Filter, Receipt
from penstock.errors import ItemRefused
from penstock.testing.clock import FakeClock
from postgres.puts import PUT, columns

ODD = ("", "\x1e", "\x1f", "a\x1fb", "\x1f\x1f", "a,b", "{}", '"', "\\", "'", "NULL", "𝄞", "\x1ea")


async def test_every_text_arrives_as_it_is(engine: PostgresEngine) -> None:
    drafts = [
        draft(
            f"{number}{text}",
            task=text,
            queue=text,
            key=text,
            name=text,
            correlation_id=text,
            unique=text,
            tags=(text, "x"),
            enqueued_by=text,
            payload=text.encode(),
        )
        for number, text in enumerate(ODD)
    ]
    receipts = await engine.enqueue(drafts)
    assert receipts == [created(each.id) for each in drafts]
    for each in drafts:
        job = await stored(engine, each.id)
        same = (job.task, job.queue, job.key, job.name, job.correlation_id, job.unique, job.tags)
        assert (*same, job.payload) == (
            *(each.task, each.queue, each.key, each.name, each.correlation_id, each.unique),
            each.tags,
            each.payload,
        )


@pytest.mark.parametrize("text", ODD)
async def test_so_it_does_alone(engine: PostgresEngine, text: str) -> None:
    mine = Draft(id=text, task="work", key=text, queue=text, payload=text.encode())
    assert await engine.enqueue([mine]) == [created(text)]
    job = await stored(engine, text)
    assert (job.key, job.queue, job.payload) == (text, text, text.encode())


@pytest.mark.parametrize("seed", range(5))
async def test_any_mixture_of_options_is_stored_as_each_alone(
    engine: PostgresEngine, seed: int
) -> None:
    """What is sent once, left out or null in a column is what the draft says."""
    random = Random(seed)

    def some(*values: Any) -> Any:
        return random.choice(values)

    drafts = [
        draft(
            f"{seed}-{number}",
            queue=some("default", "other"),
            priority=some(5, 5, -3),
            delay=some(0.0, 0.0, 7.5),
            run_at=some(None, None, engine.clock.now() + 100, 3.0),
            expires_in=some(None, 1000.0),
            key=some(None, "k"),
            unique=some(None, f"u-{seed}-{number}"),
            unique_until=some("done", "start"),
            unique_for=some(0.0, 60.0),
            remember=some(0.0, 60.0),
            at_most_once=some(False, True),
            name=some(None, "n", ""),
            tags=some((), ("a",), ("b", "c")),
            correlation_id=some(None, "c"),
            payload=some(b"{}", b"\xff", b"\0", b'{"a":1}'),
        )
        for number in range(random.randrange(2, 12))
    ]
    alone = [await engine.enqueue([each]) for each in drafts]
    assert all(receipt.created for (receipt,) in alone)
    before = [await stored(engine, each.id) for each in drafts]
    again = [
        replace(each, id=f"{each.id}!", unique=each.unique and f"{each.unique}!") for each in drafts
    ]
    assert all(receipt.created for receipt in await engine.enqueue(again))
    for first, each in zip(before, again, strict=True):
        job = await stored(engine, each.id)
        assert replace(job, seq=0) == replace(first, id=job.id, unique=each.unique, seq=0)


def test_what_drafts_have_in_common_is_sent_once() -> None:
    drafts = [draft(key="k", tags=("a",), priority=3) for _ in range(3)]
    sent = to_columns(drafts)
    assert (sent.fields["keys"], sent.fields["tags"], sent.fields["priorities"]) == (
        "k",
        '["a"]',
        "3",
    )
    assert (sent.fields["delays"], sent.fields["names"], sent.payloads) == (None, None, "{}")


def test_a_batch_of_columns_is_not_made_into_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = DraftBatch(draft(), [f"{n}" for n in range(9)], [b"%d" % n for n in range(9)])
    monkeypatch.setattr(DraftBatch, "__iter__", None)
    monkeypatch.setattr(DraftBatch, "__getitem__", None)
    (part,) = parts(batch)
    assert to_columns(part.drafts).payloads.split("\x1f") == [str(n) for n in range(9)]


@pytest.mark.parametrize("field", ["id", "queue", "name", "tags"])
def test_a_nul_is_refused_wherever_it_is(field: str) -> None:
    value: Any = ("a\0",) if field == "tags" else "a\0"
    with pytest.raises(ItemRefused, match="NUL"):
        to_columns([draft(), draft(**{field: value})])


# --- the same id twice ---------------------------------------------------------------------------


async def test_a_second_one_that_wants_the_same_key_follows_the_first(
    engine: PostgresEngine,
) -> None:
    owner = await put(engine, unique="k")
    twice = [draft("a", unique="k"), draft("b"), draft("a", unique="k")]
    assert len(parts(twice)) == 1
    refused = Receipt(owner, False, "unique")
    assert await engine.enqueue(twice) == [refused, created("b"), refused]


async def test_a_second_one_that_wants_another_key_is_tried_by_itself(
    engine: PostgresEngine,
) -> None:
    owner = await put(engine, unique="k")
    twice = [draft("a", unique="k"), draft("a", unique="l"), draft("a")]
    assert await engine.enqueue(twice) == [
        Receipt(owner, False, "unique"),
        created("a"),
        known("a"),
    ]


async def test_a_second_one_that_is_not_looked_up_in_the_ledger_is_tried_by_itself(
    engine: PostgresEngine,
) -> None:
    await put(engine, "a", remember=60.0)
    await engine.purge(Filter(), 10)
    twice = [draft("a", remember=60.0), draft("a")]
    assert await engine.enqueue(twice) == [known("a"), created("a")]


# --- ids and keys that others have ----------------------------------------------------------------


async def test_an_id_that_is_known_counts_before_the_key_that_its_job_has(
    engine: PostgresEngine,
) -> None:
    """Though another draft of the batch wants that key first."""
    await put(engine, "a", unique="k")
    receipts = await engine.enqueue([draft("b", unique="k"), draft("a", unique="k")])
    assert receipts == [Receipt("a", False, "unique"), known("a")]


async def test_a_key_is_free_for_the_next_when_the_first_that_wants_it_is_known(
    engine: PostgresEngine,
) -> None:
    await finished(engine, "succeeded", id="a", unique="k")
    receipts = await engine.enqueue([draft("a", unique="k"), draft("b", unique="k")])
    assert receipts == [known("a"), created("b")]


async def test_an_id_that_found_its_key_taken_is_not_used_up(engine: PostgresEngine) -> None:
    owner = await put(engine, unique="k")
    mine = draft("mine", unique="k", remember=60.0)
    (refused, _) = await engine.enqueue([mine, draft(remember=60.0)])
    assert refused == Receipt(owner, False, "unique")
    await settle(engine, await claim_one(engine), "succeeded")
    assert await engine.enqueue([mine]) == [created("mine")]


async def test_an_id_written_to_the_ledger_while_we_looked_is_found_by_another_try(
    engine: PostgresEngine, other: psycopg.AsyncConnection[Any]
) -> None:
    """Its job is gone by then: nothing but the ledger knows it."""
    await other.execute(f"SET penstock_clock.now = '{await reads.now(engine)!r}'")
    await other.execute(PUT, columns(draft("a", remember=60.0)))
    await other.execute("DELETE FROM penstock.live WHERE id = 'a'")
    sent = asyncio.create_task(engine.enqueue([draft("a", remember=60.0), draft("b")]))
    watch = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with asyncio.timeout(30):
        while not await (await other.execute(watch)).fetchall():
            pass
    await other.commit()
    assert await sent == [known("a"), created("b")]


async def test_the_key_of_a_purged_job_is_its_own_again(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    mine = draft("a", unique="k", unique_for=60.0)
    await engine.enqueue([mine])
    await engine.purge(Filter(), 10)
    assert await engine.enqueue([mine]) == [created("a")]
    clock.advance(61.0)
    assert (await engine.enqueue([draft("b", unique="k")]))[0].because == "unique"
