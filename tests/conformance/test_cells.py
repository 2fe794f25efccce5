"""Small named values, written only by a caller that saw the last version."""

from __future__ import annotations

import asyncio

import pytest

from penstock.engines import reads
from penstock.engines.engine import Engine
from penstock.engines.records import Cell


async def write(engine: Engine, name: str, value: bytes | None, ttl: float | None = None) -> Cell:
    """Write over whatever is there."""
    written = await engine.set_cell(name, value, (await engine.cell(name)).version, ttl)
    assert written is not None
    return written


async def listed(engine: Engine, prefix: str) -> list[str]:
    """The names of all cells with this prefix, by pages of two."""
    names: list[str] = []
    page = await engine.cells(prefix, None, 2)
    names += [name for name, _ in page.cells]
    while page.cursor is not None:
        page = await engine.cells(prefix, page.cursor, 2)
        names += [name for name, _ in page.cells]
    return names


async def test_a_cell_that_was_never_written_is_empty(engine):
    cell = await engine.cell("breaker")
    assert (cell.value, cell.version, cell.left) == (None, 0, None)


async def test_a_written_cell_can_be_read(engine):
    written = await engine.set_cell("breaker", b"open", 0)
    read = await engine.cell("breaker")
    assert written.value == read.value == b"open"
    assert written.version == read.version > 0
    assert read.left is None


async def test_a_cell_comes_with_the_instant_of_the_store(engine):
    before = await reads.now(engine)
    assert before <= (await engine.cell("c")).now <= await reads.now(engine)


async def test_each_write_makes_the_version_greater(engine):
    versions = [(await write(engine, "c", b"%d" % number)).version for number in range(3)]
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("older", [1, -1])
async def test_a_write_that_saw_another_version_changes_nothing(engine, older):
    written = await engine.set_cell("c", b"one", 0)
    assert await engine.set_cell("c", b"two", written.version - older) is None
    assert (await engine.cell("c")).value == b"one"


async def test_a_cell_that_was_never_written_has_version_0_only(engine):
    assert await engine.set_cell("c", b"one", 1) is None
    assert (await engine.cell("c")).version == 0


async def test_a_cell_can_be_emptied_and_keeps_counting(engine):
    one = await engine.set_cell("c", b"one", 0)
    none = await engine.set_cell("c", None, one.version)
    assert none.value is None
    assert none.version > one.version
    assert await engine.set_cell("c", b"again", 0) is None
    assert (await engine.set_cell("c", b"again", none.version)).version > none.version


async def test_an_empty_value_is_a_value(engine):
    await engine.set_cell("c", b"", 0)
    assert (await engine.cell("c")).value == b""


async def test_writing_the_same_value_counts(engine):
    first = await write(engine, "c", b"same")
    assert (await write(engine, "c", b"same")).version > first.version


async def test_cells_are_apart(engine):
    await engine.set_cell("a", b"1", 0)
    assert (await engine.cell("b")).version == 0


@pytest.mark.parametrize("value", [b"\x00\xff", b"x" * 100_000])
async def test_a_value_comes_back_as_it_was(engine, value):
    await engine.set_cell("c", value, 0)
    assert (await engine.cell("c")).value == value


async def test_of_many_writers_at_once_one_wins(store):
    engines = [await store.open() for _ in range(5)]
    values = [b"%d" % number for number in range(5)]
    written = await asyncio.gather(
        *(engine.set_cell("c", value, 0) for engine, value in zip(engines, values, strict=True))
    )
    (winner,) = [cell for cell in written if cell is not None]
    read = await engines[0].cell("c")
    assert (read.value, read.version) == (winner.value, winner.version)


# --- a time to live ------------------------------------------------------------------------------


async def test_a_value_is_over_after_its_time(engine, store):
    written = await engine.set_cell("c", b"soon gone", 0, 10)
    assert 0 < written.left <= 10
    store.clock.advance(4)
    assert 5 < (await engine.cell("c")).left <= 6
    store.clock.advance(7)
    cell = await engine.cell("c")
    assert (cell.value, cell.version, cell.left) == (None, written.version, None)


@pytest.mark.parametrize("lease", [7, 10, 13])
async def test_a_value_with_a_time_that_is_no_round_number_lives(engine, lease):
    """The instant at which it is over is a sum, and sums are rounded up as well as down."""
    written = await engine.set_cell("c", b"lives", 0, lease * 2 / 3)
    assert written.value == (await engine.cell("c")).value == b"lives"
    await engine.prune(10)
    assert await listed(engine, "") == ["c"]


async def test_a_value_that_is_over_is_written_over_under_its_version(engine, store):
    written = await engine.set_cell("c", b"soon gone", 0, 10)
    store.clock.advance(11)
    again = await engine.set_cell("c", b"stays", written.version)
    assert again.version > written.version
    store.clock.advance(1000)
    assert (await engine.cell("c")).value == b"stays"


async def test_a_value_that_is_written_again_lives_as_long_as_the_last_write_says(engine, store):
    await write(engine, "c", b"1", 10)
    store.clock.advance(8)
    await write(engine, "c", b"2", 10)
    store.clock.advance(8)
    assert (await engine.cell("c")).value == b"2"


async def test_a_clock_that_goes_back_keeps_no_value_alive(engine, store):
    await engine.set_cell("c", b"dead", 0, 10)
    store.clock.jump(-7200)
    assert (await engine.cell("c")).value is None


async def test_a_forgotten_cell_never_gets_an_old_version_again(engine, store):
    """A writer that saw the forgotten value must not take the new one for it."""
    old = await engine.set_cell("c", b"old", 0, 10)
    store.clock.advance(11)
    await engine.prune(10)
    assert (await engine.cell("c")).version == 0
    assert await engine.set_cell("c", b"late", old.version) is None
    assert (await engine.set_cell("c", b"new", 0)).version > old.version


async def test_pruning_forgets_what_is_over_and_nothing_else(engine, store):
    await write(engine, "stays", b"1")
    await write(engine, "lives", b"1", 100)
    await write(engine, "over", b"1", 10)
    store.clock.advance(11)
    await engine.prune(10)
    assert await listed(engine, "") == ["lives", "stays"]


# --- listing -------------------------------------------------------------------------------------


async def test_cells_are_listed_by_name_in_pages(engine):
    for name in ("b/2", "a", "b/10", "b/1", "c", "b"):
        await write(engine, name, name.encode())
    assert await listed(engine, "b/") == ["b/1", "b/10", "b/2"]
    assert await listed(engine, "") == ["a", "b", "b/1", "b/10", "b/2", "c"]
    ((_, cell),) = (await engine.cells("a", None, 5)).cells
    assert (cell.value, cell.version) == (b"a", (await engine.cell("a")).version)


async def test_a_prefix_is_taken_as_it_is(engine):
    for name in ("a%b", "a_b", "axb", "A%b", "é", "e"):
        await write(engine, name, b"")
    assert await listed(engine, "a%") == ["a%b"]
    assert await listed(engine, "a_") == ["a_b"]
    assert await listed(engine, "é") == ["é"]


async def test_empty_cells_and_those_that_are_over_are_not_listed(engine, store):
    await write(engine, "a", b"1", 10)
    await write(engine, "b", None)
    await write(engine, "c", b"1")
    store.clock.advance(11)
    assert await listed(engine, "") == ["c"]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_without_room_is_empty(engine, limit):
    await write(engine, "a", b"1")
    assert (await engine.cells("", None, limit)).cells == ()
