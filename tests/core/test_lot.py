"""Many drafts of one kind: a sequence whose items are made when they are asked for."""

from __future__ import annotations

import pytest

from penstock.core.job import Draft, Lot, ids_of, payloads_of

COMMON = Draft(id="", task="work", queue="mail", priority=3)


@pytest.fixture
def lot() -> Lot:
    return Lot(COMMON, ["a", "b", "c"], [b"1", b"2", b"3"])


def made(id: str, payload: bytes) -> Draft:
    return Draft(id=id, task="work", queue="mail", priority=3, payload=payload)


def test_it_is_a_sequence_of_drafts(lot: Lot) -> None:
    drafts = [made("a", b"1"), made("b", b"2"), made("c", b"3")]
    assert len(lot) == 3
    assert list(lot) == drafts
    assert [lot[0], lot[-1]] == [drafts[0], drafts[2]]
    assert list(reversed(lot)) == drafts[::-1]
    with pytest.raises(IndexError):
        lot[3]


def test_a_part_of_it_is_one_again(lot: Lot) -> None:
    part = lot[1:]
    assert isinstance(part, Lot)
    assert list(part) == [made("b", b"2"), made("c", b"3")]
    assert not lot[3:]


def test_ids_and_payloads_are_those_of_the_drafts(lot: Lot) -> None:
    for drafts in (lot, list(lot)):
        assert ids_of(drafts) == ["a", "b", "c"]
        assert payloads_of(drafts) == [b"1", b"2", b"3"]
