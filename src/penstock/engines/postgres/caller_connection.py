"""Connections that belong to the caller: told by their class, and made to run one statement.

No driver is imported to tell them: a caller that has a connection has loaded its driver. The
statement runs in whatever transaction is open there; the jobs and the wake-up are part of it.

What is wrong with our part has our errors. All else is about the caller's transaction (a lost
connection, a deadlock, a serialization failure, a failure before ours) and is raised as the driver
raised it: the caller's own code knows what to do.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.job import Draft
from penstock.engines.postgres.draft_columns import Part, parts, to_columns
from penstock.engines.postgres.rows import Row
from penstock.engines.postgres.schema import check_name, placed
from penstock.engines.records import Receipt
from penstock.engines.sql_files import statements
from penstock.engines.validation import check_drafts
from penstock.errors import ItemRefused, PenstockError, WrongConnection

MOST: Final = 1000
"""Jobs that are stored by one statement."""

_NOWHERE: Final = frozenset({"3F000", "42883"})
"""There is no such schema, or no such function in it."""
_FORBIDDEN: Final = "42501"
_REFUSED: Final = ("22", "54")
"""Classes of states that blame a value."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How connections of a class run a statement: blocking, or awaited."""

    mark: str
    """Stands for the value in their statements."""
    run: Callable[[Any, str, str], Iterable[Row]] | None = None
    arun: Callable[[Any, str, str], Awaitable[Iterable[Row]]] | None = None


class Borrowed:
    """A connection that belongs to the caller, as a way into the store in its database."""

    def __init__(self, connection: object, schema: str) -> None:
        self._connection = connection
        self._schema = check_name(schema)
        self._name = _name(connection.__class__)
        self._kind = _kind(connection)
        if self._kind is None:
            why = (
                "it is no connection that is known here; give one of psycopg, asyncpg, SQLAlchemy "
                "or Django, or a session of SQLAlchemy"
            )
            raise WrongConnection(self._name, why)

    def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store jobs in the caller's transaction; a receipt for each, in order.

        On failure: ``WrongConnection``, ``ItemRefused``, or what the driver raises.
        """
        kind = self._kind
        if kind is None or kind.run is None:
            raise WrongConnection(self._name, "it is async; await aenqueue or aenqueue_many")
        receipts: list[Receipt] = []
        with self._named_errors():
            for part in _parts(drafts):
                rows = kind.run(self._connection, self._sql(kind), _text(part))
                receipts += part.receipts(list(rows))
        return receipts

    async def aput(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """The same, awaited."""
        kind = self._kind
        if kind is None or kind.arun is None:
            why = "it blocks; call enqueue or enqueue_many, where your transaction is: in a thread"
            raise WrongConnection(self._name, why)
        receipts: list[Receipt] = []
        with self._named_errors():
            for part in _parts(drafts):
                rows = await kind.arun(self._connection, self._sql(kind), _text(part))
                receipts += part.receipts(list(rows))
        return receipts

    def _sql(self, kind: _Kind) -> str:
        statement = statements("postgres/enqueue.sql")["put_for_caller"]
        return placed(statement, self._schema).replace(":drafts", kind.mark)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            found = self._named(_state(error), " ".join(str(error).split()))
            if found is None:
                raise
            raise found from error

    def _named(self, state: str, text: str) -> PenstockError | None:
        if state in _NOWHERE:
            why = (
                f"its database has no store in the schema {self._schema!r}; give a connection to "
                "the database that the app's URL names, and make the store with `penstock migrate`"
            )
            return WrongConnection(self._name, why)
        if state == _FORBIDDEN:
            why = (
                f"its role may not enqueue ({text}); let the owner of the store say "
                f"SELECT {self._schema}.allow(role, 'enqueue')"
            )
            return WrongConnection(self._name, why)
        return ItemRefused("postgresql", text) if state.startswith(_REFUSED) else None


def _parts(drafts: Sequence[Draft]) -> Iterator[Part]:
    """The drafts, as many at a time as one statement stores."""
    check_drafts("postgresql", drafts)
    for start in range(0, len(drafts), MOST):
        yield from parts(drafts[start : start + MOST])


def _text(part: Part) -> str:
    """The drafts as ``penstock.put_json`` reads them."""
    text = to_columns(part.drafts).json()
    # The caller's connection may have any encoding: all of them have ASCII.
    return text if text.isascii() else json.dumps(json.loads(text))


def _state(error: BaseException) -> str:
    """The SQLSTATE that an error is about, however its driver or framework wraps it."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if isinstance(state, str):
            return state
    return ""


# --- the kinds ----------------------------------------------------------------------------------


def _psycopg(connection: Any, sql: str, drafts: str) -> Iterable[Row]:
    import psycopg
    from psycopg.rows import tuple_row

    # Whatever cursors and rows the caller prefers.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(sql.encode(), (drafts,)).fetchall()


async def _async_psycopg(connection: Any, sql: str, drafts: str) -> Iterable[Row]:
    import psycopg
    from psycopg.rows import tuple_row

    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(sql.encode(), (drafts,))
        return await cursor.fetchall()


async def _asyncpg(connection: Any, sql: str, drafts: str) -> Iterable[Row]:
    return [tuple(record) for record in await connection.fetch(sql, drafts)]


def _sqlalchemy(connection: Any, sql: str, drafts: str) -> Iterable[Row]:
    from sqlalchemy import text

    _check(connection, connection.dialect.name)
    return [tuple(row) for row in connection.execute(text(sql), {"drafts": drafts})]


def _session(session: Any, sql: str, drafts: str) -> Iterable[Row]:
    return _sqlalchemy(session.connection(), sql, drafts)


async def _async_sqlalchemy(connection: Any, sql: str, drafts: str) -> Iterable[Row]:
    from sqlalchemy import text

    _check(connection, connection.dialect.name)
    rows = await connection.execute(text(sql), {"drafts": drafts})
    return [tuple(row) for row in rows]


async def _async_session(session: Any, sql: str, drafts: str) -> Iterable[Row]:
    return await _async_sqlalchemy(await session.connection(), sql, drafts)


def _django(connection: Any, sql: str, drafts: str) -> Iterable[Row]:
    _check(connection, connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(sql, [drafts])
        rows: list[Row] = cursor.fetchall()
        return rows


def _check(connection: object, database: str) -> None:
    if database != "postgresql":
        why = f"it leads to {database}; give one to the PostgreSQL database that has the jobs"
        raise WrongConnection(_name(connection.__class__), why)


_KINDS: Final[Mapping[str, _Kind]] = {
    "psycopg.Connection": _Kind("%s", run=_psycopg),
    "psycopg.AsyncConnection": _Kind("%s", arun=_async_psycopg),
    "asyncpg.Connection": _Kind("$1", arun=_asyncpg),
    "asyncpg.PoolConnectionProxy": _Kind("$1", arun=_asyncpg),
    "sqlalchemy.Connection": _Kind(":drafts", run=_sqlalchemy),
    "sqlalchemy.Session": _Kind(":drafts", run=_session),
    "sqlalchemy.scoped_session": _Kind(":drafts", run=_session),
    "sqlalchemy.AsyncConnection": _Kind(":drafts", arun=_async_sqlalchemy),
    "sqlalchemy.AsyncSession": _Kind(":drafts", arun=_async_session),
    "sqlalchemy.async_scoped_session": _Kind(":drafts", arun=_async_session),
    "django.BaseDatabaseWrapper": _Kind("%s", run=_django),
    "django.ConnectionProxy": _Kind("%s", run=_django),
}


def _kind(connection: object) -> _Kind | None:
    # What a proxy says its class is, is what it stands for.
    names = map(_name, connection.__class__.__mro__)
    return next((_KINDS[name] for name in names if name in _KINDS), None)


def _name(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
