"""Repair what a lost step may have left in an SQLite store: unique keys and key lines."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engines.records import Repaired
from penstock.engines.sqlite.connection import SqliteTransaction
from penstock.engines.sqlite.key_line_batches import FIRST_LINE, lost_lines
from penstock.engines.sqlite.key_lines import Line, note
from penstock.engines.sqlite.queues import give_key_back
from penstock.engines.sqlite.rows import json_text


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last key and the last line that were looked at; None: all were."""

    key: str | None
    line: Line | None


_START: Final = _Cursor("", FIRST_LINE)
_END: Final = _Cursor(None, None)
_cursor = msgspec.json.Decoder(_Cursor)


def repair(
    tx: SqliteTransaction, limit: int, cursor: str | None, *, rehearse: bool = False
) -> Repaired:
    if limit <= 0:
        return Repaired(cursor=cursor)
    at = _START if cursor is None else _cursor.decode(cursor)
    loose, key = _loose_keys(tx, at.key, limit, is_first=cursor is None)
    lost, line = ([], None) if at.line is None else lost_lines(tx, at.line, limit)
    if not rehearse:
        for name, owner in loose:
            give_key_back(tx, name, owner)
        note(tx, lost)
    left = _Cursor(key, line)
    text = None if left == _END else json_text(left)
    return Repaired(lines=len(lost), keys=len(loose), cursor=text)


def _loose_keys(
    tx: SqliteTransaction, after: str | None, limit: int, *, is_first: bool
) -> tuple[list[tuple[str, str]], str | None]:
    """Of the next ``limit`` unique keys, those of jobs that need them no longer, with their owners;
    and the last one seen, None if there are no more.
    """
    if after is None:
        return [], None
    rows = tx.all("unique_keys", {"after": after, "is_first": is_first, "limit": limit + 1})
    page = rows[:limit]
    loose = [(key, owner) for key, owner, is_loose in page if is_loose]
    return loose, page[-1][0] if len(rows) > limit else None
