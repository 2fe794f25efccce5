"""The system tells of writes to a file, and of nothing that nobody asked for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.steps import put, soon
from penstock.engines.records import News
from penstock.engines.sqlite.engine import SqliteEngine
from penstock.engines.sqlite.wakeup import FileEvents


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"")
    return path


@pytest.fixture
async def watched(path: Path) -> AsyncIterator[tuple[FileEvents, asyncio.Event]]:
    changed = asyncio.Event()
    events = FileEvents(str(path), changed.set)
    events.watch()
    yield events, changed
    events.close()
    events.close()


async def test_a_write_is_told(path: Path, watched: tuple[FileEvents, asyncio.Event]) -> None:
    events, changed = watched
    assert events.watching
    with open(path, "ab") as file:
        file.write(b"commit")
    await soon(changed.wait())


async def test_who_rests_is_told_of_a_write_when_it_watches_again(
    path: Path, watched: tuple[FileEvents, asyncio.Event]
) -> None:
    events, changed = watched
    seen_beside = asyncio.Event()
    beside = FileEvents(str(path), seen_beside.set)
    beside.watch()
    events.rest()
    path.write_bytes(b"commit")
    await soon(seen_beside.wait())
    assert not changed.is_set()
    events.watch()
    await soon(changed.wait())
    beside.close()


async def test_a_file_that_is_replaced_is_watched_again(
    path: Path, watched: tuple[FileEvents, asyncio.Event]
) -> None:
    events, changed = watched
    os.unlink(path)
    await soon(changed.wait())
    assert not events.watching
    path.write_bytes(b"")
    events.watch()
    assert events.watching
    changed.clear()
    path.write_bytes(b"commit")
    await soon(changed.wait())


async def test_a_file_that_is_not_there_is_watched_when_it_comes(tmp_path: Path) -> None:
    changed = asyncio.Event()
    events = FileEvents(str(tmp_path / "later"), changed.set)
    assert not events.watching
    (tmp_path / "later").write_bytes(b"")
    events.watch()
    assert events.watching
    events.close()


async def test_where_the_system_does_not_tell_a_commit_is_seen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engines.sqlite.wakeup.sys.platform", "plan9")
    here, there = (SqliteEngine(str(tmp_path / "jobs.db")) for _ in range(2))
    await here.open()
    await there.open()
    seen = await here.version(News.CHANGED)
    nap = asyncio.create_task(here.listen(News.CHANGED, seen, 60.0))
    await put(there)
    assert await soon(nap) != seen
    await here.close()
    await there.close()
