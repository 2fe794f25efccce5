"""Checks of a PostgreSQL store's tables: what is cleared away, what is missing, what is damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

import psycopg

from penstock.core.finding import Fact, Finding, Level
from penstock.core.units import text as span
from penstock.engines.postgres.probe import Probe
from penstock.engines.postgres.schema import DAYS_AHEAD, placed
from penstock.engines.sql_files import migrations

MANY_DEAD: Final = 100_000
"""Dead rows of a table: autovacuum begins at 5,000, so it does not keep up, or cannot."""
LONG: Final = 300.0
"""Seconds that a transaction may stay open before it holds too much back."""
FAR: Final = 1_000_000
"""Transactions that a standby may be behind."""
SPARSE: Final = 64 * 1024 * 1024
"""Bytes of a table or its indexes that are worth a look."""
PAGE: Final = 8192
FEW_DAYS: Final = 2
"""Days ahead, below which a leader has not done its duty for long."""

_INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+)\s+ON penstock\.(\w+)[^;]*", re.DOTALL)
_TABLE: Final = re.compile(r"CREATE (?:UNLOGGED )?TABLE penstock\.(\w+) \(([^;]*)", re.DOTALL)


# --- what is cleared away -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """What the server has counted of one table."""

    name: str
    live: int
    dead: int
    cleared: float | None
    """Seconds since its dead rows were cleared away."""
    is_exempt: bool
    """It was excluded from autovacuum."""
    bytes: int
    index_bytes: int


async def vacuum(probe: Probe) -> Sequence[Finding]:
    """Rows that were deleted or changed stay until a vacuum clears them away."""
    settings = await probe.settings()
    off = [name for name in ("autovacuum", "track_counts") if settings[name] == "off"]
    tables = [Table(*row) for row in await probe.rows("vacuum")]
    exempt = [f"{probe.schema}.{table.name}" for table in tables if table.is_exempt]
    found = [*_switched_off(off, exempt), *_dead(tables), *_sparse(probe.schema, tables)]
    (live,) = [table for table in tables if table.name == "live"]
    facts: dict[str, Fact] = {"live": live.live, "dead": live.dead}
    return found or [Finding(check="vacuum", text=f"live has {_rows(live.dead)}", facts=facts)]


def _rows(dead: int) -> str:
    return f"{dead:,} dead {'row' if dead == 1 else 'rows'}"


def _switched_off(settings: Sequence[str], tables: Sequence[str]) -> Iterator[Finding]:
    if settings:
        text = f"{' and '.join(settings)} off: dead rows are never cleared away"
        step = f"ALTER SYSTEM RESET {settings[0]}; SELECT pg_reload_conf()"
        yield Finding(check="vacuum", level=Level.WARNING, text=text, next_step=step)
    if tables:
        text = f"autovacuum is off for {', '.join(tables)}: its dead rows are never cleared away"
        step = f"ALTER TABLE {tables[0]} RESET (autovacuum_enabled)"
        yield Finding(check="vacuum", level=Level.WARNING, text=text, next_step=step)


def _dead(tables: Sequence[Table]) -> Iterator[Finding]:
    for table in tables:
        if table.dead >= MANY_DEAD:
            last = "never" if table.cleared is None else f"{span(round(table.cleared))} ago"
            yield Finding(
                check="vacuum",
                level=Level.WARNING,
                text=f"{table.name} has {_rows(table.dead)} beside {table.live:,} live ones; it "
                f"was last cleared {last}",
                next_step="end what holds vacuum back (horizon), or give autovacuum more workers",
                facts={"table": table.name, "dead": table.dead, "live": table.live},
            )


def _sparse(schema: str, tables: Sequence[Table]) -> Iterator[Finding]:
    """A table with less than a row in a page is mostly air: the rows of jobs are small."""
    for table in tables:
        name = table.name
        for size, what, step in (
            (table.bytes, f"{name} takes", f"in a quiet hour: VACUUM FULL {schema}.{name}"),
            (
                table.index_bytes,
                f"the indexes of {name} take",
                f"REINDEX TABLE CONCURRENTLY {schema}.{name}",
            ),
        ):
            if size >= SPARSE and size > table.live * PAGE:
                yield Finding(
                    check="bloat",
                    level=Level.NOTE,
                    text=f"{what} {size / 1e6:,.0f} MB for {table.live:,} rows",
                    next_step=step,
                    facts={"table": name, "bytes": size, "rows": table.live},
                )


async def horizon(probe: Probe) -> Sequence[Finding]:
    """A transaction that still sees old rows keeps them from being cleared away, for all."""
    found = [
        Finding(
            check="horizon",
            level=Level.WARNING,
            text=f"{who} has a transaction open for {span(round(since))}, and until it ends no "
            f"dead row is cleared away: {what}",
            next_step=_ending(who),
            facts={"who": who, "seconds": since},
        )
        for who, since, what in await probe.rows("transactions")
        if since >= LONG
    ]
    found += [
        Finding(
            check="horizon",
            level=Level.WARNING,
            text=f"{who} is {behind:,} transactions behind, and until it catches up no dead row "
            "is cleared away",
            next_step=drop or "look at that standby, or set its hot_standby_feedback to off",
            facts={"who": who, "transactions": behind},
        )
        for who, behind, drop in await probe.rows("slots")
        if behind >= FAR
    ]
    if found:
        return found
    if await probe.rows("hidden") != [(True,)]:
        text = "this role does not see the transactions of others"
        step = "GRANT pg_read_all_stats to it, or ask again as a superuser"
        return [Finding(check="horizon", level=Level.NOTE, text=text, next_step=step)]
    return [Finding(check="horizon", text="nothing holds back what may be cleared away")]


def _ending(who: str) -> str:
    """How to end a transaction, of a process or prepared."""
    kind, _, rest = who.partition(" ")
    if kind == "process":
        return f"end it: SELECT pg_terminate_backend({rest.split()[0]})"
    name = rest.removeprefix("transaction ").rpartition(" of ")[0]
    return f"COMMIT PREPARED {name}, or ROLLBACK PREPARED {name}"


# --- what is missing ----------------------------------------------------------------------------


@cache
def expected(schema: str) -> tuple[Mapping[str, str], frozenset[str]]:
    """The indexes that the migrations make, as they do; and the tables with a primary key."""
    text = "\n".join(re.sub(r"--[^\n]*", "", script) for script in migrations("postgres"))
    indexes = {
        found[1]: placed(" ".join(found[0].split()), schema) for found in _INDEX.finditer(text)
    }
    keyed = frozenset(found[1] for found in _TABLE.finditer(text) if "PRIMARY KEY" in found[2])
    return MappingProxyType(indexes), keyed


async def indexes(probe: Probe) -> Sequence[Finding]:
    """Without its index a claim reads the whole backlog."""
    needed, keyed = expected(probe.schema)
    there = await probe.rows("indexes")
    found = [
        _lacking(f"index {name} is missing", statement)
        for name, statement in needed.items()
        if name not in {index for index, *_ in there}
    ]
    found += [
        _lacking(f"{table} has no primary key", "see the migrations: penstock migrate --sql")
        for table in sorted(keyed - {table for _, _, is_primary, table in there if is_primary})
    ]
    found += [
        _lacking(
            f"index {name} is not valid: building it was interrupted",
            f"REINDEX INDEX CONCURRENTLY {probe.schema}.{name}"
            if "_ccnew" not in name
            else f"DROP INDEX {probe.schema}.{name}",
        )
        for name, is_valid, *_ in there
        if not is_valid
    ]
    sound = Finding(check="indexes", text=f"all {len(needed)} indexes are there")
    return found or [sound]


def _lacking(text: str, step: str) -> Finding:
    return Finding(check="indexes", level=Level.ERROR, text=text, next_step=step)


async def days(probe: Probe) -> Sequence[Finding]:
    """A day that is missing is made when a job ends, which takes that job a little longer."""
    ((ahead, leaving),) = await probe.rows("ahead")
    facts = {"days": ahead, "leaving": leaving}
    found = []
    if leaving:
        text = f"{leaving} did not leave the history yet: a transaction has read it for long"
        step = "the leader tries each minute; look for a transaction that stays open"
        found.append(
            Finding(check="days", level=Level.NOTE, text=text, next_step=step, facts=facts)
        )
    if ahead <= FEW_DAYS:
        text = f"the history has tables for {ahead} days from today on, and should for {DAYS_AHEAD}"
        step = f"see that a worker leads; until then: SELECT {probe.schema}.make_days({DAYS_AHEAD})"
        found.append(
            Finding(check="days", level=Level.WARNING, text=text, next_step=step, facts=facts)
        )
    sound = Finding(check="days", text=f"the history has tables for {ahead} days", facts=facts)
    return found or [sound]


CHECKS: Final = (vacuum, horizon, indexes, days)


# --- what is damaged ----------------------------------------------------------------------------


async def integrity(probe: Probe) -> Sequence[Finding]:
    """Whether the indexes say what the tables say: by ``amcheck``, or else by counting."""
    found = await probe.rows("amcheck")
    if found and found[0][1]:
        return await _verified(probe, found[0][0])
    try:
        (table,) = await probe.script("by_table", "recount")
        (index,) = await probe.script("by_index", "recount")
    finally:
        await probe.connection.script("ROLLBACK")
    if table != index:
        text = f"the tables hold {list(table)} jobs, and their indexes {list(index)}"
        return [_damaged(text, f"REINDEX TABLE CONCURRENTLY {probe.schema}.live")]
    text = f"{table[0]:,} live jobs, and as many by the indexes"
    step = "CREATE EXTENSION amcheck, as a superuser, for a closer look"
    return [Finding(check="integrity", level=Level.NOTE, text=text, next_step=step)]


async def _verified(probe: Probe, amcheck: str) -> Sequence[Finding]:
    bad = []
    trees = await probe.rows("trees")
    for name, oid in trees:
        try:
            await probe.rows("verify", (oid,), amcheck=amcheck)
        except psycopg.errors.UndefinedTable:
            continue  # its day was dropped meanwhile
        except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
            text = f"index {name} is damaged: {' '.join(str(error).split())}"
            bad.append(_damaged(text, f"REINDEX INDEX CONCURRENTLY {name}"))
    return bad or [Finding(check="integrity", text=f"{len(trees)} indexes are sound")]


def _damaged(text: str, step: str) -> Finding:
    step += "; then find out what damaged it: a disk, or a new version of the system's collations"
    return Finding(check="integrity", level=Level.ERROR, text=text, next_step=step)
