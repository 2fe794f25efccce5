"""Which engine a URL names: the one place that picks a concrete one, when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from penstock.borrowed import Borrowed
from penstock.clock import Clock
from penstock.core.duration import seconds
from penstock.core.effects import Effects
from penstock.engines.engine import Engine
from penstock.engines.observed import Observed
from penstock.errors import (
    BadOption,
    MissingDriver,
    MissingEngine,
    WrongConnection,
    WrongProcess,
)
from penstock.events import Bus
from penstock.url import POSTGRES, Url, hidden, parse

PRESENT = ("memory://", "sqlite:///", "postgresql://")
_DRIVERS = {"postgresql": ("psycopg", "postgres"), "redis": ("redis", "redis")}

# Stores in memory are shared by their name within one process; a forked child starts without.
_shared: dict[tuple[int, str], Any] = {}


def connect(url: str, clock: Clock) -> Engine:
    """A new, unopened handle on the store that ``url`` names."""
    return connector(parse(url), clock)()


def observed(connect: Callable[[], Engine], bus: Bus, outlast: float = 0.0) -> Engine:
    """A new handle that tells ``bus`` what happens, and has patience."""
    return Observed(connect(), bus, outlast=outlast)


def connector(url: Url, clock: Clock) -> Callable[[], Engine]:
    """What makes handles on the store that ``url`` names; a named error if nothing can.

    The engine is imported here, by the thread that makes the app: were it imported by the façade's
    thread, a fork at that moment would leave the child with a locked module.
    """
    match url.scheme:
        case "memory":
            from penstock.engines.memory import MemoryEngine, MemoryStore
            from penstock.worker.child.place import is_child

            _check(url, ())
            stores = _shared if url.location else {}

            def memory() -> Engine:
                if is_child():
                    raise WrongProcess(str(url))
                here = os.getpid(), url.location
                return MemoryEngine(stores.setdefault(here, MemoryStore()), clock)

            return memory
        case "sqlite":
            from penstock.engines.sqlite import SqliteEngine

            _check(url, ("synchronous", "busy_timeout"))
            safety = url.options.get("synchronous", "normal").lower()
            if safety not in ("normal", "full"):
                raise BadOption("synchronous", safety, "give 'normal' or 'full'")
            return partial(
                SqliteEngine,
                url.location,
                clock,
                synchronous="full" if safety == "full" else "normal",
                busy_timeout=seconds(url.options.get("busy_timeout", 10.0), name="busy_timeout"),
            )
    driver, extra = _DRIVERS[url.scheme]
    if find_spec(driver) is None:
        raise MissingDriver(f"{url.scheme}://", extra)
    if url.scheme == "postgresql":
        from penstock.engines.postgres.address import check_address
        from penstock.engines.postgres.engine import PostgresEngine
        from penstock.engines.postgres.schema import check_name

        check_address(url.location, str(url), POSTGRES)
        _transactions(url)
        options = url.options
        return partial(
            PostgresEngine,
            url.location,
            clock,
            schema=check_name(options.get("schema", "penstock")),
            connections=_whole(options.get("connections", "4"), name="connections"),
            connect_timeout=seconds(options.get("connect_timeout", 5.0), name="connect_timeout"),
            listens=_flag(options["listen"], name="listen") if "listen" in options else None,
        )
    raise MissingEngine(f"{url.scheme}://", PRESENT)


def migration(url: Url, found: int = 0) -> str:
    """What brings the store that ``url`` names from version ``found`` up to date, as SQL for a
    person to run; empty if nothing does. ``BadOption`` where it takes more than SQL.
    """
    if url.scheme != "postgresql":
        why = f"a {url.scheme} store is not made by SQL alone; run it without --sql"
        raise BadOption("sql", str(url), why)
    from penstock.engines.postgres.schema import check_name, printed

    return printed(check_name(url.options.get("schema", "penstock")), found)


def borrower(url: Url) -> Callable[[object], Borrowed]:
    """What makes connections of the callers' a way into the store that ``url`` names."""
    if url.scheme == "postgresql":
        from penstock.engines.postgres.borrowed import Borrowed as OnPostgres

        return partial(OnPostgres, schema=url.options.get("schema", "penstock"))

    def refuse(connection: object) -> Borrowed:
        kind = type(connection)
        why = (
            f"the jobs are kept in {url}, not in a PostgreSQL database; leave connection=... out, "
            "or give Penstock the URL of that database"
        )
        raise WrongConnection(f"{kind.__module__.partition('.')[0]}.{kind.__name__}", why)

    return refuse


def effects(url: Url) -> Effects:
    """Where transactional tasks of an app write; ``BadOption`` if its store has no such place."""
    if url.scheme != "postgresql":
        why = f"a {url.scheme} store has no transaction that a task could write in; it takes a "
        raise BadOption("transactional", True, f"{why}postgresql:// URL, or leave it out")
    from penstock.engines.postgres.effects import PostgresEffects

    options = url.options
    return PostgresEffects(
        url.location,
        schema=options.get("schema", "penstock"),
        transactions=_transactions(url),
        connect_timeout=seconds(options.get("connect_timeout", 5.0), name="connect_timeout"),
        is_direct=_flag(options.get("listen", "true"), name="listen"),
    )


def _transactions(url: Url) -> int:
    return _whole(url.options.get("transactions", "10"), name="transactions")


def _check(url: Url, known: tuple[str, ...]) -> None:
    for name, value in url.options.items():
        if name not in known:
            why = f"a {url.scheme} URL has no such option; it has {', '.join(known) or 'none'}"
            raise BadOption(name, hidden(f"?{name}={value}").partition("=")[2], why)


def _whole(text: str, *, name: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) <= 1000:
        return int(text)
    raise BadOption(name, text, "give a whole number from 1 to 1000")


def _flag(text: str, *, name: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise BadOption(name, text, "give 'true' or 'false'")
