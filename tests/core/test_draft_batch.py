"""Many drafts of one kind: a sequence whose items are made when they are asked for."""

from __future__ import annotations

import pytest

from penstock.core.job import Draft, DraftBatch, ids_of, payloads_of

COMMON = Draft(id="", task="work", queue="mail", priority=3)


@pytest.fixture
def batch() -> DraftBatch:
    return DraftBatch(COMMON, ["a", "b", "c"], [b"1", b"2", b"3"])


def made(id: str, payload: bytes) -> Draft:
    return Draft(id=id, task="work", queue="mail", priority=3, payload=payload)


def test_it_is_a_sequence_of_drafts(batch: DraftBatch) -> None:
    drafts = [made("a", b"1"), made("b", b"2"), made("c", b"3")]
    assert len(batch) == 3
    assert list(batch) == drafts
    assert [batch[0], batch[-1]] == [drafts[0], drafts[2]]
    assert list(reversed(batch)) == drafts[::-1]
    with pytest.raises(IndexError):
        batch[3]


def test_a_part_of_it_is_one_again(batch: DraftBatch) -> None:
    part = batch[1:]
    assert isinstance(part, DraftBatch)
    assert list(part) == [made("b", b"2"), made("c", b"3")]
    assert not batch[3:]


def test_ids_and_payloads_are_those_of_the_drafts(batch: DraftBatch) -> None:
    for drafts in (batch, list(batch)):
        assert ids_of(drafts) == ["a", "b", "c"]
        assert payloads_of(drafts) == [b"1", b"2", b"3"]
