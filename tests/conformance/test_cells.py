"""``cell`` and ``set_cell``: small named values, written only by who saw the last version."""

from __future__ import annotations

import asyncio

import pytest

from penstock.engines.records import Cell


async def test_a_cell_that_was_never_written_is_empty(engine):
    assert await engine.cell("breaker") == Cell(None, 0)


async def test_a_written_cell_can_be_read(engine):
    assert await engine.set_cell("breaker", b"open", 0) == Cell(b"open", 1)
    assert await engine.cell("breaker") == Cell(b"open", 1)


async def test_the_version_grows_by_one_with_each_write(engine):
    for version in range(5):
        assert await engine.set_cell("c", b"%d" % version, version) == Cell(
            b"%d" % version, version + 1
        )


@pytest.mark.parametrize("version", [0, 2, -1, 99])
async def test_who_did_not_see_the_last_version_writes_nothing(engine, version):
    await engine.set_cell("c", b"one", 0)
    assert await engine.set_cell("c", b"two", version) is None
    assert await engine.cell("c") == Cell(b"one", 1)


async def test_the_first_write_needs_version_zero(engine):
    assert await engine.set_cell("c", b"one", 1) is None
    assert await engine.cell("c") == Cell(None, 0)


async def test_writing_nothing_is_a_write(engine):
    await engine.set_cell("c", b"one", 0)
    assert await engine.set_cell("c", None, 1) == Cell(None, 2)
    assert await engine.cell("c") == Cell(None, 2)
    assert await engine.set_cell("c", b"again", 0) is None
    assert await engine.set_cell("c", b"again", 2) == Cell(b"again", 3)


async def test_nothing_and_empty_are_different(engine):
    await engine.set_cell("c", b"", 0)
    assert await engine.cell("c") == Cell(b"", 1)


async def test_writing_the_same_value_grows_the_version(engine):
    await engine.set_cell("c", b"same", 0)
    assert await engine.set_cell("c", b"same", 1) == Cell(b"same", 2)


async def test_cells_are_apart(engine):
    await engine.set_cell("a", b"1", 0)
    assert await engine.cell("b") == Cell(None, 0)


async def test_bytes_are_kept(engine):
    value = bytes(range(256)) * 10
    await engine.set_cell("c", value, 0)
    assert (await engine.cell("c")).value == value


async def test_of_many_who_write_at_once_one_wins(store):
    engines = [await store.open() for _ in range(6)]
    values = [b"%d" % number for number in range(6)]
    written = await asyncio.gather(
        *(engine.set_cell("c", value, 0) for engine, value in zip(engines, values, strict=True))
    )
    (winner,) = [cell for cell in written if cell is not None]
    assert winner.version == 1
    assert await engines[0].cell("c") == winner


async def test_nobodys_increment_is_lost(store):
    engines = [await store.open() for _ in range(4)]

    async def add_five(engine):
        for _ in range(5):
            while True:
                cell = await engine.cell("count")
                number = int(cell.value or b"0") + 1
                if await engine.set_cell("count", b"%d" % number, cell.version):
                    break

    await asyncio.gather(*(add_five(engine) for engine in engines))
    assert await engines[0].cell("count") == Cell(b"20", 20)
