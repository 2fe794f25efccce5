"""Drafts as ``penstock.put`` takes them: one text per column, for any number of jobs.

To write a list as one text costs a client next to nothing, and the server little to take apart. A
column that has its default in all drafts is left out, one that is the same in all is sent once: so
what a caller does not use costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from penstock.core.ids import all_made_at, new_id
from penstock.core.job import KEEP, KEEP_FAILED, Draft, DraftBatch, ids_of, payloads_of
from penstock.engines.postgres.errors import NAME, named_errors
from penstock.engines.postgres.rows import Row, json_text
from penstock.engines.records import Receipt
from penstock.engines.validation import INTEGERS, check_drafts, is_long

BETWEEN: Final = "\x1f"
"""Stands between the items of a list: no JSON text and no id that we make has it."""
NONE: Final = "\x1e"
"""An item that is null."""


class _Field(NamedTuple):
    """How one field of a draft becomes a column."""

    column: str
    name: str
    default: object
    to_text: Callable[[Any], str] | None = None
    is_time: bool = False


def _flag(value: bool) -> str:
    return "t" if value else "f"


_FIELDS: Final = (
    _Field("tasks", "task", None),
    _Field("queues", "queue", "default"),
    _Field("priorities", "priority", 5, str),
    _Field("enqueued_by", "enqueued_by", ""),
    _Field("delays", "delay", 0.0, str, is_time=True),
    _Field("run_at", "run_at", None, str, is_time=True),
    _Field("expires_in", "expires_in", None, str, is_time=True),
    _Field("keys", "key", None),
    _Field("names", "name", None),
    _Field("tags", "tags", (), json_text),
    _Field("correlation_ids", "correlation_id", None),
    _Field("at_most_once", "at_most_once", False, _flag),
    _Field("remember", "remember", 0.0, str, is_time=True),
    _Field("uniques", "unique_key", None),
    _Field("unique_until", "unique_until", "done"),
    _Field("unique_for", "unique_for", 0.0, str, is_time=True),
    _Field("keep", "keep", KEEP, str, is_time=True),
    _Field("keep_failed", "keep_failed", KEEP_FAILED, str, is_time=True),
    _Field("meta", "meta", None, bytes.decode),
)
"""In the order of ``penstock.put``, after the ids and the payloads."""


class Columns(NamedTuple):
    """A batch of drafts, no two with the same id."""

    ids: str
    payloads: str
    is_binary: bool
    """The payloads are sent as hexadecimal digits."""
    fields: dict[str, str | None]
    """The other columns by their names, in the order of ``penstock.put``."""
    mark: str
    made_at: float
    """When the first of the ids may have been made; 0: at any time."""

    def texts(self, doubted_since: float, *, is_careful: bool) -> list[bytes | None]:
        """The parameters of ``penstock.put``; for ``doubted_since`` see ``Doubt``."""
        is_new = self.made_at > doubted_since and not is_careful
        values = (
            self.ids,
            self.payloads,
            _flag(self.is_binary),
            *self.fields.values(),
            self.mark,
            None if is_new else repr(self.made_at),
            _flag(is_careful),
        )
        with named_errors():
            return [None if value is None else value.encode() for value in values]

    def json(self) -> str:
        """The parameter of ``penstock.put_json``."""
        columns = {
            "ids": self.ids,
            "payloads": self.payloads,
            "is_binary": self.is_binary,
            "mark": self.mark,
            "since": self.made_at,
        }
        given = {name: text for name, text in self.fields.items() if text is not None}
        return json_text(columns | given)


def to_columns(drafts: Sequence[Draft]) -> Columns:
    """Take drafts apart, of which no two have the same id.

    On failure: ``ItemRefused``.
    """
    columns = _to_columns(drafts, "") or _to_columns(drafts, new_id())
    if columns is None:
        check_drafts(NAME, drafts)
        raise AssertionError("a mark that was made just now is in a draft")
    return columns


def _to_columns(drafts: Sequence[Draft], mark: str) -> Columns | None:
    """None: a text has what stands between the items, or what no text can have."""
    ids, payloads = ids_of(drafts), payloads_of(drafts)
    kinds = (drafts.first,) if isinstance(drafts, DraftBatch) else drafts
    fields: dict[str, str | None] = {}
    has_times = False
    for field in _FIELDS:
        values = list(map(attrgetter(field.name), kinds))
        if values.count(field.default) == len(values):
            fields[field.column] = None
            continue
        has_times = has_times or field.is_time
        if field.name == "priority" and not all(map(INTEGERS.__contains__, values)):
            check_drafts(NAME, kinds)
        if field.name in ("queue", "key") and any(is_long(each) for each in set(values) - {None}):
            check_drafts(NAME, kinds)
        column = _column(values, field.to_text, mark)
        if column is None:
            return None
        if field.name == "tags" and "\\u0000" in column:
            check_drafts(NAME, kinds)  # the one text in which JSON hides a NUL
        fields[field.column] = column
    if has_times:
        check_drafts(NAME, kinds)
    joined = (BETWEEN + mark).join(ids)
    if not is_list(joined, len(ids), mark):
        return None
    made_at = all_made_at(ids) if fields["remember"] is None else 0.0
    return Columns(joined, *_payloads(payloads, mark), fields, mark, made_at)


def _column(values: Sequence[Any], to_text: Callable[[Any], str] | None, mark: str) -> str | None:
    if values.count(values[0]) == len(values):
        text: str = values[0] if to_text is None else to_text(values[0])
        return text if is_list(text, 1, mark) else None
    none = NONE + mark
    nones = values.count(None) + values.count(())
    texts: Sequence[str] = values
    if to_text is not None:
        texts = [none if value is None or value == () else to_text(value) for value in values]
    elif nones:
        texts = [none if value is None else value for value in values]
    joined = (BETWEEN + mark).join(texts)
    return joined if is_list(joined, len(values), mark, nones) else None


def is_list(joined: str, count: int, mark: str = "", nones: int = 0) -> bool:
    """The server will find so many items in this text, and so many that are null: none has what
    stands between them, what a null is, or what no text can have.
    """
    return (
        joined.count(BETWEEN + mark) == count - 1
        and joined.count(NONE + mark) == nones
        and "\0" not in joined
    )


def _payloads(payloads: Sequence[bytes], mark: str) -> tuple[str, bool]:
    """Payloads as one text, and whether it is hexadecimal because one of them is no text."""
    if payloads.count(payloads[0]) == len(payloads):
        payloads = payloads[:1]
    try:
        joined = (BETWEEN + mark).encode().join(payloads).decode()
    except UnicodeDecodeError:
        joined = "\0"
    if is_list(joined, len(payloads), mark):
        return joined, False
    return (BETWEEN + mark).join([payload.hex() for payload in payloads]), True


# --- drafts with the same id ----------------------------------------------------------------------


_TRUE: Final = repeat(True)
_NONE: Final = repeat(None)


class Part(NamedTuple):
    """Drafts that can be stored in one step, of which no two have the same id."""

    drafts: Sequence[Draft]
    repeats: Sequence[tuple[int, int]] = ()
    """Drafts that are left out, and whose receipts follow from one that is not: where each stands
    among all, and where the other one stands among ``drafts``."""

    def receipts(self, rows: Sequence[Row]) -> list[Receipt]:
        """A receipt for each draft, in order; ``rows`` are those that were refused."""
        ids = ids_of(self.drafts)
        refused = {int(row[0]) - 1: row[1:] for row in rows}
        tickets = map(int, (refused.pop(-1)[0] or "").split(","))
        if not refused:
            receipts = [Receipt(*each) for each in zip(ids, _TRUE, _NONE, tickets, strict=False)]
        else:
            receipts = [
                _refused(*refused[n]) if n in refused else Receipt(id, True, None, next(tickets))
                for n, id in enumerate(ids)
            ]
        firsts = [receipts[first] for _, first in self.repeats]
        for (index, place), first in zip(self.repeats, firsts, strict=True):
            if first.created:
                first = Receipt(first.id, False, "id", task=self.drafts[place].task)
            receipts.insert(index, first)
        return receipts


def _refused(owner: str, because: Literal["id", "unique"], task: str | None) -> Receipt:
    # A blocking caller's connection reads a null as an empty text.
    return Receipt(owner, False, because, task=task if because == "id" else None)


def parts(drafts: Sequence[Draft]) -> list[Part]:
    """Divide drafts into parts that give the same receipts, one after the other, as all would."""
    ids = ids_of(drafts)
    if len(set(ids)) == len(ids):
        return [Part(drafts)]
    found: list[Part] = []
    kept: list[Draft] = []
    repeats: list[tuple[int, int]] = []
    places: dict[str, int] = {}
    for draft in drafts:
        place = places.get(draft.id)
        if place is not None and not _follows(draft, kept[place]):
            found.append(Part(kept, repeats))
            kept, repeats, places, place = [], [], {}, None
        if place is None:
            places[draft.id] = len(kept)
            kept.append(draft)
        else:
            repeats.append((len(kept) + len(repeats), place))
    return [*found, Part(kept, repeats)]


def _follows(draft: Draft, first: Draft) -> bool:
    """What becomes of the second draft with an id follows from what became of the first one."""
    is_looked_up = draft.remember > 0 or first.remember <= 0
    return is_looked_up and first.unique_key in (None, draft.unique_key)
