"""Connections of a caller's own, of every kind, with one way to say what is done on them.

Those that block do so on a thread of their own, where some of them have to be used anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import asyncpg
import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from penstock.handle import Handle
from penstock.task import Sender

Result = TypeVar("Result")


class Purse:
    """One connection. A transaction begins with ``begin``, and ends by ``commit`` or ``rollback``;
    outside of it a connection that was opened with ``commits`` commits each statement."""

    connection: Any
    is_async: ClassVar[bool] = True

    def __init__(self, url: str, *, commits: bool = False) -> None:
        self.url = url
        self.commits = commits

    async def open(self) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        """Most begin by themselves."""

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def savepoint(self) -> Any:
        raise NotImplementedError

    async def back(self, savepoint: Any) -> None:
        await savepoint.rollback()

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, sender: Sender[..., Any], *args: Any) -> Handle[Any]:
        return await sender.using(connection=self.connection).aenqueue(*args)

    async def enqueue_many(self, sender: Sender[..., Any], items: Any) -> list[Handle[Any]]:
        return await sender.using(connection=self.connection).aenqueue_many(items)


class Blocking(Purse):
    """One that blocks."""

    is_async = False

    def __init__(self, url: str, *, commits: bool = False) -> None:
        super().__init__(url, commits=commits)
        self._thread = ThreadPoolExecutor(1)

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def open(self) -> None:
        self.connection = await self.run(self._open)

    def _open(self) -> Any:
        raise NotImplementedError

    async def commit(self) -> None:
        await self.run(lambda: self.connection.commit())

    async def rollback(self) -> None:
        await self.run(lambda: self.connection.rollback())

    async def back(self, savepoint: Any) -> None:
        await self.run(savepoint.rollback)

    async def close(self) -> None:
        await self.run(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        self.connection.close()

    async def enqueue(self, sender: Sender[..., Any], *args: Any) -> Handle[Any]:
        return await self.run(sender.using(connection=self.connection).enqueue, *args)

    async def enqueue_many(self, sender: Sender[..., Any], items: Any) -> list[Handle[Any]]:
        return await self.run(sender.using(connection=self.connection).enqueue_many, items)


# --- psycopg -------------------------------------------------------------------------------------


class Psycopg(Blocking):
    def _open(self) -> Any:
        return psycopg.connect(self.url, autocommit=self.commits)

    async def savepoint(self) -> str:
        await self.run(self.connection.execute, "SAVEPOINT here")
        return "here"

    async def back(self, savepoint: str) -> None:
        await self.run(self.connection.execute, f"ROLLBACK TO {savepoint}")


class AsyncPsycopg(Purse):
    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.url, autocommit=self.commits)

    async def savepoint(self) -> str:
        await self.connection.execute("SAVEPOINT here")
        return "here"

    async def back(self, savepoint: str) -> None:
        await self.connection.execute(f"ROLLBACK TO {savepoint}")


# --- asyncpg -------------------------------------------------------------------------------------


class Asyncpg(Purse):
    _transaction: Any

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)

    async def begin(self) -> None:
        self._transaction = await self.savepoint()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def savepoint(self) -> Any:
        inner = self.connection.transaction()
        await inner.start()
        return inner


class PooledAsyncpg(Asyncpg):
    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self._pool.acquire()

    async def close(self) -> None:
        await self._pool.release(self.connection)
        await self._pool.close()


# --- SQLAlchemy ----------------------------------------------------------------------------------


def alchemical(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


class AlchemyConnection(Blocking):
    def _open(self) -> Any:
        level = {"isolation_level": "AUTOCOMMIT"} if self.commits else {}
        self._engine = create_engine(alchemical(self.url), **level)
        return self._connect()

    def _connect(self) -> Any:
        return self._engine.connect()

    def _close(self) -> None:
        super()._close()
        self._engine.dispose()

    async def savepoint(self) -> Any:
        return await self.run(self.connection.begin_nested)


class AlchemySession(AlchemyConnection):
    def _connect(self) -> Any:
        return Session(self._engine)


class ScopedSession(AlchemyConnection):
    def _connect(self) -> Any:
        return scoped_session(sessionmaker(self._engine))


class AsyncAlchemyConnection(Purse):
    driver: ClassVar[str] = "psycopg"

    async def open(self) -> None:
        level = {"isolation_level": "AUTOCOMMIT"} if self.commits else {}
        self._engine = create_async_engine(alchemical(self.url, self.driver), **level)
        self.connection = await self._connect()

    async def _connect(self) -> Any:
        connection: AsyncConnection = await self._engine.connect()
        return connection

    async def close(self) -> None:
        await super().close()
        await self._engine.dispose()

    async def savepoint(self) -> Any:
        return await self.connection.begin_nested()


class AsyncpgUnderAlchemy(AsyncAlchemyConnection):
    driver = "asyncpg"


class AsyncAlchemySession(AsyncAlchemyConnection):
    driver = "asyncpg"

    async def _connect(self) -> Any:
        return AsyncSession(self._engine)


class AsyncScopedSession(AsyncAlchemyConnection):
    async def _connect(self) -> Any:
        return async_scoped_session(async_sessionmaker(self._engine), asyncio.current_task)


# --- Django --------------------------------------------------------------------------------------


class Django(Blocking):
    """A connection of Django's, which is another one on every thread."""

    def _open(self) -> Any:
        import django
        from django.conf import settings
        from django.db.utils import ConnectionHandler

        if not settings.configured:
            settings.configure(USE_TZ=True)
            django.setup()
        place = urlsplit(self.url)
        self._handler: Any = ConnectionHandler(
            {
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": place.path[1:],
                    "USER": place.username,
                    "HOST": place.hostname,
                    "PORT": place.port,
                }
            }
        )
        self._handler["default"].ensure_connection()
        return self._lent()

    def _lent(self) -> Any:
        return self._handler["default"]

    async def begin(self) -> None:
        await self.run(lambda: self.connection.set_autocommit(False))

    async def savepoint(self) -> Any:
        return await self.run(lambda: self.connection.savepoint())

    async def back(self, savepoint: Any) -> None:
        await self.run(lambda: self.connection.savepoint_rollback(savepoint))


class DjangoProxy(Django):
    """What ``django.db.connection`` is."""

    def _lent(self) -> Any:
        from django.utils.connection import ConnectionProxy

        return ConnectionProxy(self._handler, "default")


KINDS: dict[str, type[Purse]] = {
    "psycopg": Psycopg,
    "psycopg-async": AsyncPsycopg,
    "asyncpg": Asyncpg,
    "asyncpg-pool": PooledAsyncpg,
    "sqlalchemy-connection": AlchemyConnection,
    "sqlalchemy-session": AlchemySession,
    "sqlalchemy-scoped": ScopedSession,
    "sqlalchemy-async-connection": AsyncAlchemyConnection,
    "sqlalchemy-asyncpg-connection": AsyncpgUnderAlchemy,
    "sqlalchemy-async-session": AsyncAlchemySession,
    "sqlalchemy-async-scoped": AsyncScopedSession,
    "django": Django,
    "django-proxy": DjangoProxy,
}
