"""What a PostgreSQL store is made of, and whether all of it is there.

A version says what was made once. What somebody has dropped since, by hand or with an extension or
a restore that was cut short, is told here before anything stumbles over it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from penstock.core.finding import Finding, Level
from penstock.engines.postgres.probe import Probe
from penstock.engines.queries import migrations

_MADE: Final = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:UNLOGGED )?(TABLE|SEQUENCE|TYPE|VIEW|FUNCTION|TRIGGER)"
    r" (?:penstock\.)?(\w+)",
    re.MULTILINE,
)


@cache
def made() -> frozenset[str]:
    """All that the migrations make, by kind and name; indexes have a check of their own."""
    return frozenset(
        f"{kind.lower()} {name}"
        for script in migrations("postgres")
        for kind, name in _MADE.findall(script)
    )


async def missing(probe: Probe) -> Sequence[Finding]:
    """Nothing works for long in a store that lacks a part."""
    there = {f"{kind} {name}" for kind, name in await probe.rows("parts")}
    return [
        Finding(
            check="schema",
            level=Level.ERROR,
            text=f"{part} is missing in schema {probe.schema}, though its version has it",
            next_step="restore it from a backup, or move the jobs that matter to a new schema",
            facts={"missing": part},
        )
        for part in sorted(made() - there)
    ]
