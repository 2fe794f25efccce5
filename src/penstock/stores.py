"""Where the jobs live: URLs, the engines they name, and which store an app uses now.

The one place that picks a concrete engine, and only when it is asked for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from penstock.clock import Clock
from penstock.config import Settings
from penstock.core.finding import Finding
from penstock.core.job import Draft
from penstock.core.transactions import Effects
from penstock.core.units import seconds
from penstock.engines.engine import Engine
from penstock.engines.observed import Observed
from penstock.engines.records import Receipt
from penstock.engines.wrapper import EngineWrapper
from penstock.errors import (
    BadOption,
    MissingDriver,
    MissingEngine,
    UnknownScheme,
    WrongConnection,
    WrongProcess,
)
from penstock.events import Bus

# --- URLs ---------------------------------------------------------------------------------------

PRESENT: Final = ("memory://", "sqlite:///", "postgresql://")
"""What a URL may start with: the engines of this version."""

_SCHEMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "memory": "memory",
        "sqlite": "sqlite",
        "postgresql": "postgresql",
        "postgres": "postgresql",
        "redis": "redis",
        "rediss": "redis",
    }
)
POSTGRES: Final = ("schema", "connections", "transactions", "connect_timeout", "listen")
"""Options of a PostgreSQL URL that are for Penstock; all others are for the driver."""
_SECRET: Final = re.compile(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token)[^=&]*=)[^&#]*")


@dataclass(frozen=True, slots=True)
class Url:
    """A store's address.

    ``location`` is the absolute path of a file, the name of a memory store ("" has no name and is
    not shared), or the URL of a server as its driver reads it, secrets included.
    """

    scheme: str
    location: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    @property
    def absolute(self) -> str:
        """A URL by which any process on this machine reaches the same store, secrets included."""
        if self.scheme != "sqlite":
            return self.text
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"sqlite:///{quote(self.location)}{query}"

    def __str__(self) -> str:
        return hidden(self.absolute)


def parse(text: str) -> Url:
    """Read a URL; a relative path is taken from the present working directory, once."""
    if not isinstance(text, str):
        raise BadOption("url", text, "give text such as 'sqlite:///jobs.db'")
    start, mark, _ = text.partition("://")
    scheme = _SCHEMES.get(start.lower())
    if not mark or scheme is None:
        raise UnknownScheme(hidden(text), PRESENT, _instead(start, hidden(text)))
    if scheme == "postgresql":
        return _postgresql(text)
    if scheme not in ("memory", "sqlite"):
        return Url(scheme, text=text)
    # Only now is the text known to hold no secret that urlsplit might quote in an error.
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise BadOption("url", hidden(text), f"it cannot be read ({error})") from error
    if "#" in text:
        raise BadOption("url", hidden(text), "it has a '#', which ends a URL; write it as %23")
    options = MappingProxyType(dict(parse_qsl(parts.query, keep_blank_values=True)))
    if scheme == "memory":
        return Url(scheme, unquote(parts.netloc + parts.path), options, text)
    return Url(scheme, _path(text, parts.netloc, parts.path), options, text)


def _instead(start: str, shown: str) -> str | None:
    """What to write instead of a URL as SQLAlchemy has it: ``postgresql+psycopg://app@db/shop``."""
    scheme, plus, _ = start.partition("+")
    known = _SCHEMES.get(scheme.lower())
    return f"{known}{shown[len(start) :]}" if plus and known else None


def _postgresql(text: str) -> Url:
    """The URL of a server: our options are taken out, the rest is for its driver."""
    location, mark, query = text.partition("?")
    given = [item.partition("=") for item in query.split("&") if item]
    ours = {name: unquote(value) for name, _, value in given if name in POSTGRES}
    theirs = "&".join("".join(item) for item in given if item[0] not in POSTGRES)
    _, _, rest = location.partition("://")
    return Url("postgresql", f"postgresql://{rest}{mark and theirs and '?'}{theirs}", ours, text)


def _path(text: str, host: str, path: str) -> str:
    """The file that a sqlite URL names."""
    shown = hidden(text)
    if host:
        why = "a file needs three slashes: sqlite:///relative.db, or sqlite:////absolute/path.db"
        raise BadOption("url", shown, why)
    name = unquote(path[1:])
    if name in ("", ":memory:"):
        raise BadOption("url", shown, "it names no file; write sqlite:///jobs.db, or memory://")
    if "\0" in name:
        raise BadOption("url", shown, "a file name cannot contain NUL")
    return os.path.abspath(name)


def hidden(text: str) -> str:
    """The URL without its passwords, however wrong it is otherwise."""
    text = _SECRET.sub(r"\1***", text)
    start, mark, rest = text.rpartition("@")
    if not mark:
        return text
    scheme, found, login = start.partition("://")
    if not found:
        scheme, login = "", start
    user, colon, _ = login.partition(":")
    return f"{scheme}{found}{user}{':***' if colon else ''}@{rest}"


MOVED: Final = "PENSTOCK_MOVED"
"""In the environment of a child process of a worker that was given another store (``--url``): the
URL that the code names, and the one that counts, as a list in JSON."""


def moved(text: str) -> str:
    """The URL that counts in this process for an app whose settings say ``text``."""
    from penstock.worker.child.find_task import is_child

    if MOVED in os.environ and is_child():
        before, after = json.loads(os.environ[MOVED])
        return str(after) if before == text else text
    return text


# --- the store of one app -----------------------------------------------------------------------


class CallerConnection(Protocol):
    """A connection that belongs to the caller, as a way into the store in its database."""

    def put(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """Store jobs in the caller's transaction; a receipt for each, in order."""

    async def aput(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """The same, awaited."""


@dataclass(frozen=True, slots=True, eq=False)
class StoreOpener:
    """What makes handles on one store, and the clock that goes with it."""

    connect: Callable[[], Engine]
    clock: Clock


class StoreSource:
    """Where an app finds its store: the one it was made with, unless a test put another before it.

    The façade and the workers ask here each time they open a handle. A worker keeps the answer it
    had when it was made: one of the real store goes on there, whatever a test does meanwhile.
    """

    def __init__(
        self, opener: StoreOpener, lend: Callable[[object], CallerConnection] | None = None
    ) -> None:
        """``lend`` makes a way in of a caller's connection; see ``lender``."""
        # Replaced, never changed: readers need no lock.
        self._openers: tuple[StoreOpener, ...] = (opener,)
        self._lend = lend

    @property
    def opener(self) -> StoreOpener:
        """The latest one that was put."""
        return self._openers[-1]

    @property
    def is_own(self) -> bool:
        """No test has put another store before the app's own."""
        return len(self._openers) == 1

    def connect(self) -> Engine:
        """A new, unopened handle."""
        return self.opener.connect()

    def lent(self, connection: object) -> CallerConnection | None:
        """The caller's connection as a way into the app's own store; None: jobs go the usual way,
        for what a test has put before the store is in no database.

        On failure: ``WrongConnection``.
        """
        return self._lend(connection) if self.is_own and self._lend is not None else None

    def move(self, opener: StoreOpener, lend: Callable[[object], CallerConnection] | None) -> None:
        """Let another store be the app's own, from the next handle on."""
        self._openers = (opener, *self._openers[1:])
        self._lend = lend

    def put(self, opener: StoreOpener) -> None:
        """Let this be the store from the next handle on."""
        self._openers = (*self._openers, opener)

    def take(self, opener: StoreOpener) -> None:
        """Let it be no more. Idempotent, in any order."""
        self._openers = tuple(each for each in self._openers if each is not opener)


# --- engines by URL -----------------------------------------------------------------------------

# Stores in memory are shared by their name within one process; a forked child starts without.
_shared: dict[tuple[int, str], Any] = {}


def connect(url: str, clock: Clock) -> Engine:
    """A new, unopened handle on the store that ``url`` names."""
    return connector(parse(url), clock)()


def observed(connect: Callable[[], Engine], bus: Bus, settings: Settings) -> Engine:
    """A new handle that repeats what may be repeated, and tells ``bus`` what happens."""
    return Observed(
        connect(),
        bus,
        timeout=settings.store_timeout,
        tries=settings.store_tries,
        outlast=settings.wait_for_store,
    )


@runtime_checkable
class Examined(Protocol):
    """An engine that can say how the place is where its jobs live."""

    async def checkup(self, *, thorough: bool = False) -> list[Finding]:
        """Whether it can be reached, its version, room and safety. With ``thorough``, also whether
        all of it is sound, which may take long.

        Open or not: nothing is made, migrated or changed. On failure: what is wrong is a finding.
        """


async def checkup(engine: Engine, *, thorough: bool) -> list[Finding]:
    """What there is to say of the place where the jobs of this handle live; for the doctor."""
    while isinstance(engine, EngineWrapper):
        engine = engine.inner
    return await engine.checkup(thorough=thorough) if isinstance(engine, Examined) else []


def connector(url: Url, clock: Clock) -> Callable[[], Engine]:
    """What makes handles on the store that ``url`` names; a named error if nothing can.

    The engine is imported here, by the thread that makes the app: were it imported by the façade's
    thread, a fork at that moment would leave the child with a locked module.
    """
    match url.scheme:
        case "memory":
            from penstock.engines.memory.engine import MemoryEngine
            from penstock.engines.memory.store import MemoryStore
            from penstock.worker.child.find_task import is_child

            _check(url, ())
            stores = _shared if url.location else {}

            def memory() -> Engine:
                if is_child():
                    raise WrongProcess(str(url))
                here = os.getpid(), url.location
                return MemoryEngine(stores.setdefault(here, MemoryStore()), clock)

            return memory
        case "sqlite":
            from penstock.engines.sqlite.engine import SqliteEngine

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
        case "postgresql":
            if find_spec("psycopg") is None:
                raise MissingDriver("postgresql://", "postgres")
            from penstock.engines.postgres.engine import PostgresEngine
            from penstock.engines.postgres.schema import check_address, check_name

            check_address(url.location, str(url), POSTGRES)
            _transactions(url)
            options = url.options
            return partial(
                PostgresEngine,
                url.location,
                clock,
                schema=check_name(options.get("schema", "penstock")),
                connections=_whole(options.get("connections", "4"), name="connections"),
                connect_timeout=seconds(
                    options.get("connect_timeout", 5.0), name="connect_timeout"
                ),
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


def lender(url: Url) -> Callable[[object], CallerConnection]:
    """What makes connections of the callers' a way into the store that ``url`` names."""
    if url.scheme == "postgresql":
        from penstock.engines.postgres.caller_connection import Borrowed as OnPostgres

        return partial(OnPostgres, schema=url.options.get("schema", "penstock"))

    def refuse(connection: object) -> CallerConnection:
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
    from penstock.engines.postgres.task_transaction import PostgresEffects

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
