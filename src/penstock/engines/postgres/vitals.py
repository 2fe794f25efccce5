"""Checks of a PostgreSQL server: how safe, how full and how old it is, and whether we hear it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import psycopg

from penstock.core.finding import Finding, Level
from penstock.core.ids import new_id
from penstock.engines.postgres.link import ISOLATION, Link
from penstock.engines.postgres.probe import Probe
from penstock.errors import EngineError

LITTLE_ROOM: Final = 0.1
"""The part of all connections that should be left."""
OLD_NUMBERS: Final = 1_000_000_000
"""Transactions since the oldest that is still in use; PostgreSQL begins to see to it at a fifth."""
OLDEST_NUMBERS: Final = 1_800_000_000
"""The server stops at 2.1 thousand million."""
PATIENCE: Final = 2.0
"""Seconds to wait for a notification."""

_LOSES: Final = {
    "fsync": "a power cut can destroy the database",
    "full_page_writes": "a power cut can destroy the database",
    "synchronous_commit": "a crash of the server loses what was enqueued or settled just before",
}


async def durability(probe: Probe) -> Sequence[Finding]:
    """What was committed has to be there after a power cut."""
    settings = await probe.settings()
    off = [name for name in _LOSES if settings[name] == "off"]
    if not off:
        return [Finding(check="durability", text="what is committed survives a power cut")]
    return [
        Finding(
            check="durability",
            level=Level.WARNING,
            text=f"{', '.join(off)} off: {_LOSES[off[0]]}",
            next_step=f"set {', '.join(off)} to on, unless every job may be lost",
            facts={name: settings[name] for name in _LOSES},
        )
    ]


async def isolation(probe: Probe) -> Sequence[Finding]:
    """Ours is our own; whoever enqueues in a transaction of theirs has the default."""
    found = (await probe.settings())["default_transaction_isolation"]
    facts = {"default_transaction_isolation": found}
    if found == ISOLATION:
        return [Finding(check="isolation", text=f"isolation is {found}", facts=facts)]
    return [
        Finding(
            check="isolation",
            level=Level.NOTE,
            text=f"the default isolation is {found}: Penstock has its own, but who enqueues in a "
            "transaction of theirs may have to repeat it",
            next_step="see that such transactions are repeated on errors of class 40",
            facts=facts,
        )
    ]


async def connections(probe: Probe) -> Sequence[Finding]:
    """Whoever comes next has to be let in."""
    found = await probe.rows("connections")
    whose, used, most = min(found, key=lambda row: row[2] - row[1])
    facts = {"used": used, "most": most}
    text = f"{used} of {most} connections of {whose} are in use"
    if most - used >= LITTLE_ROOM * most:
        return [Finding(check="connections", text=text, facts=facts)]
    step = "raise the limit, give workers fewer (?connections=), or put a pooler between"
    return [
        Finding(check="connections", level=Level.WARNING, text=text, next_step=step, facts=facts)
    ]


async def wraparound(probe: Probe) -> Sequence[Finding]:
    """Numbers of transactions are used again: the old ones have to be cleared away before."""
    ((age, group_age),) = await probe.rows("wraparound")
    return [numbers(max(age, group_age))]


def numbers(age: int) -> Finding:
    """What is said of a database with a transaction of this age."""
    facts = {"age": age}
    if age < OLD_NUMBERS:
        text = f"the oldest transaction number is {age:,} behind"
        return Finding(check="wraparound", text=text, facts=facts)
    return Finding(
        check="wraparound",
        level=Level.ERROR if age >= OLDEST_NUMBERS else Level.WARNING,
        text=f"the oldest transaction number is {age:,} behind: at 2,100,000,000 the server stops",
        next_step="run VACUUM FREEZE in this database, and end what holds it back",
        facts=facts,
    )


CHECKS: Final = (durability, isolation, connections, wraparound)


async def listening(
    probe: Probe, connect: Callable[[], Awaitable[Link]], listens: bool | None
) -> Finding:
    """Whether a notification is heard, over a connection of its own."""
    pooled = probe.link.is_pooled
    facts = {"is_pooled": pooled}
    if listens is False:
        text = "the URL says listen=false: workers poll"
        step = "leave it out, unless a pooler is between"
        return Finding(check="wake_up", level=Level.NOTE, text=text, next_step=step, facts=facts)
    try:
        is_heard = await _is_heard(probe, connect)
    except (psycopg.Error, OSError, EngineError):
        is_heard = False
    if is_heard:
        text = "notifications are heard" + (", through a pooler" if pooled else "")
        return Finding(check="wake_up", text=text, facts=facts)
    text = f"no notification is heard within {PATIENCE:g} s: workers poll, and start jobs later"
    step = "see that nothing between here and the server cuts or filters connections"
    if pooled:
        text = f"a pooler is between, and {text}"
        step = "let workers connect directly, or in a pool with pool_mode = session"
    return Finding(check="wake_up", level=Level.WARNING, text=text, next_step=step, facts=facts)


async def _is_heard(probe: Probe, connect: Callable[[], Awaitable[Link]]) -> bool:
    channel = f"penstock.checkup.{new_id()}"
    link = await connect()
    try:
        async with asyncio.timeout(PATIENCE):
            async for _, heard in link.listen(channel):
                if heard:
                    return True
                await probe.link.script(f"NOTIFY \"{channel}\", 'heard'")
        return False
    except TimeoutError:
        return False
    finally:
        await link.close()
