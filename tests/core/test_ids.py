"""Ids: nobody else has the same, whoever forks, and they grow with the time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from penstock.core.ids import Ids, all_made_at, made_at, new_id, new_ids


def test_no_two_are_equal_in_any_thread():
    with ThreadPoolExecutor(4) as pool:
        shares = pool.map(lambda _: [new_id(1.0) for _ in range(5_000)], range(4))
    ids = [id for share in shares for id in share]

    assert len(set(ids)) == len(ids) == 20_000


def test_a_forked_process_has_its_own():
    before = new_id(1.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "".join(new_id(1.0) for _ in range(10)).encode())
        os._exit(0)
    mine = {new_id(1.0) for _ in range(10)} | {before}
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    theirs = {text[start : start + 26] for start in range(0, 260, 26)}

    assert len(theirs) == 10
    assert not mine & theirs


def test_a_later_one_stands_behind_an_earlier_one():
    instants = [0.0, 0.01, 1.0, 1e9, 1.7e9, 1.7e9 + 0.01, 4e9]

    ids = [new_id(at) for at in instants]
    assert ids == sorted(ids)


def test_any_instant_makes_one_of_the_same_shape():
    for at in (-1.0, -1e12, 0.0, 1e15):
        id = new_id(at)
        assert len(id) == 26
        assert set(id) <= set("0123456789abcdef")


def test_many_at_once_are_in_order_and_nobody_elses():
    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(lambda _: list(islice(new_ids(1e9), 5_000)), range(4)))

    assert all(share == sorted(share) for share in shares)
    ids = [id for share in shares for id in share]
    assert len(set(ids)) == len(ids) == 20_000
    assert {len(id) for id in ids} == {26}
    assert all_made_at(ids) == 1e9


def test_those_that_are_made_when_asked_for_are_a_list_of_them():
    for index in (
        *(slice(None), slice(3), slice(3, 7), slice(-4, None), slice(None, -4)),
        *(slice(8, 2, -2), slice(None, None, -1), slice(7, 3), slice(5, 99), 0, 9, -1, -10),
    ):
        ids = Ids(1_000_000_000.0, 10)
        found = ids[index]
        assert found == list(ids)[index]
        assert len(ids) == len(set(ids)) == 10
    with pytest.raises(IndexError):
        Ids(0.0, 3)[3]


def test_nobody_asks_for_more_than_are_made():
    ids = Ids(1_000_000_000.0, 100_000)
    first = ids[:1000]
    assert len(ids._made) == 1000
    assert ids[500:1500][:500] == first[500:]
    assert [made_at(id) for id in first] == [1_000_000_000.0] * 1000
