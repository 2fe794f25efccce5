"""``python -m benchmarks.drivers``: psycopg 3 beside asyncpg, on what the PostgreSQL engine does.

Both send prepared statements with binary results on one connection, on the tables of the engine;
they take turns, on asyncio's loop and on uvloop's. Beside how many operations or jobs they do per
second stands what each costs this process, which a busy machine changes least. Figures go to
``results/drivers.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import psycopg
import uvloop

from benchmarks.locations import Location, location_for
from benchmarks.machine import load, machine
from benchmarks.scenario import Scale
from benchmarks.server import server_for

HERE = Path(__file__).parent
TABLES = HERE.parent / "src" / "penstock" / "engines" / "sql" / "postgres" / "0001_tables.sql"
RESULTS = HERE / "results" / "drivers.json"
TURNS = 100
BATCH = 100
PAYLOAD = b'{"to": "somebody@example.org", "body": "hello"}'

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def statements() -> dict[str, str]:
    """The blocks of ``drivers.sql``, by name."""
    blocks = (HERE / "drivers.sql").read_text().split("-- name: ")[1:]
    return {name: body for name, _, body in (block.partition("\n") for block in blocks)}


SQL: Final = statements()


class Driver(ABC):
    """One connection that commits each statement by itself."""

    @abstractmethod
    async def open(self, url: str) -> None:
        """Connect."""

    @abstractmethod
    async def rows(self, sql: str, *values: object) -> Sequence[Any]:
        """Run one prepared statement; return its rows."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class Psycopg(Driver):
    """psycopg 3, with rows as tuples."""

    async def open(self, url: str) -> None:
        self._connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        self._cursor = psycopg.AsyncRawCursor(self._connection)
        self._cursor.format = psycopg.pq.Format.BINARY

    async def rows(self, sql: str, *values: object) -> Sequence[Any]:
        cursor = await self._cursor.execute(sql.encode(), values, prepare=True)
        return await cursor.fetchall() if cursor.description is not None else ()

    async def close(self) -> None:
        await self._connection.close()


class Asyncpg(Driver):
    """asyncpg, with records."""

    async def open(self, url: str) -> None:
        self._connection = await asyncpg.connect(url)

    async def rows(self, sql: str, *values: object) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(sql, *values)
        return rows

    async def close(self) -> None:
        await self._connection.close()


DRIVERS: Final[dict[str, type[Driver]]] = {"psycopg": Psycopg, "asyncpg": Asyncpg}


class Cost(NamedTuple):
    """What operations or jobs came to."""

    rate: float
    """Per second."""
    cpu: float
    """Microseconds of this process for each."""


class Stretch:
    """Clocks that run from now."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._used = time.process_time()

    def cost(self, count: int) -> Cost:
        """What ``count`` things came to since then."""
        elapsed, used = time.perf_counter() - self._start, time.process_time() - self._used
        return Cost(count / elapsed, used / count * 1e6)


class Course:
    """Everything that one driver is measured on."""

    def __init__(self, driver: Driver, scale: Scale) -> None:
        self._driver = driver
        self._scale = scale

    async def run(self) -> dict[str, Cost]:
        """One round."""
        return {
            "round trip": await self._rate(1_500, 1, lambda: self._driver.rows(SQL["nothing"])),
            "insert 1": await self._rate(500, 1, self._insert_one),
            "insert 100, arrays": await self._rate(100, 100, lambda: self._insert(100)),
            "insert 1,000, arrays": await self._rate(20, 1_000, lambda: self._insert(1_000)),
            "insert 100, text": await self._rate(100, 100, lambda: self._insert_text(100)),
            "insert 1,000, text": await self._rate(20, 1_000, lambda: self._insert_text(1_000)),
            "turn of 100, arrays": await self._turns("turn", list),
            "turn of 100, text": await self._turns("turn_text", "\n".join),
        }

    async def _rate(self, times: int, jobs: int, call: Callable[[], Any]) -> Cost:
        await call()  # prepares it
        times = self._scale.jobs(times, least=3)
        stretch = Stretch()
        for _ in range(times):
            await call()
        return stretch.cost(times * jobs)

    async def _insert_one(self) -> None:
        await self._driver.rows(SQL["insert_one"], uuid.uuid4().hex, "mail.send", PAYLOAD)

    async def _insert(self, count: int) -> None:
        ids = [uuid.uuid4().hex for _ in range(count)]
        tasks, payloads = ["mail.send"] * count, [PAYLOAD] * count
        await self._driver.rows(SQL["insert"], ids, tasks, payloads)

    async def _insert_text(self, count: int) -> None:
        ids = "\n".join(uuid.uuid4().hex for _ in range(count))
        tasks, payloads = "\n".join(["mail.send"] * count), "\n".join([PAYLOAD.decode()] * count)
        await self._driver.rows(SQL["insert_text"], ids, tasks, payloads)

    async def _turns(self, name: str, told: Callable[[list[str]], object]) -> Cost:
        """Claim and settle: what was claimed in one turn is settled in the next."""
        mine: Sequence[Any] = ()
        turns = self._scale.jobs(TURNS, least=3)
        settled = 0
        stretch = Stretch()
        for _ in range(turns):
            places, ids = told([row[0] for row in mine]), told([row[1] for row in mine])
            settled += len(mine)
            mine = await self._driver.rows(SQL[name], places, ids, "worker", BATCH)
        return stretch.cost(settled)


async def measured(
    location: Location, name: str, loop: str, number: int, scale: Scale
) -> dict[str, Cost]:
    """One round of a driver, on tables of its own."""
    url = location.url(f"{name}_{loop}_{number}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA penstock")
        for script in (TABLES.read_text(), SQL["make_turn"], SQL["make_day"]):
            connection.execute(script.encode())
        connection.execute("SELECT pg_stat_reset()")
    driver = DRIVERS[name]()
    await driver.open(url)
    try:
        return await Course(driver, scale).run()
    finally:
        await driver.close()


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drivers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the figures go")
    given = parser.parse_args()
    pairs = [(name, loop) for loop in LOOPS for name in DRIVERS]
    rounds: dict[str, list[dict[str, Cost]]] = {f"{name} {loop}": [] for name, loop in pairs}
    before = load()
    with server_for("postgres"), location_for("postgres") as location:
        for number in range(given.rounds):
            for name, loop in pairs if number % 2 == 0 else pairs[::-1]:
                with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                    work = measured(location, name, loop, number, Scale(given.scale))
                    rounds[f"{name} {loop}"].append(runner.run(work))
    medians = {pair: _medians(found) for pair, found in rounds.items()}
    for figure, title in enumerate(("per second", "µs of client CPU each")):
        print(f"{title:<22}" + "".join(f"{pair:>17}" for pair in medians))
        for what in medians["psycopg uvloop"]:
            cells = (each[what][figure] for each in medians.values())
            print(f"{what:<22}" + "".join(f"{cell:>17,.{figure}f}" for cell in cells))
    versions = {"psycopg": psycopg.__version__, "asyncpg": asyncpg.__version__}
    about = {"machine": machine(), "load": {"before": before, "after": load()}}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    found = {"versions": versions, **about, "medians": medians, "rounds": rounds}
    given.output.write_text(json.dumps(found, indent=2) + "\n")


def _medians(found: Sequence[dict[str, Cost]]) -> dict[str, Cost]:
    return {
        what: Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))
        for what in found[0]
        for costs in ([each[what] for each in found],)
    }


if __name__ == "__main__":
    main()
