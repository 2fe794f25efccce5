"""The hot statements keep their indexes: none reads the whole table, none sorts the backlog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.steps import draft
from penstock.engines.queries import statements
from penstock.engines.sqlite import SqliteEngine

HOT = [
    "head",
    "head_of_many",
    "succeed",
    "claim",
    "save",
    "due",
    "hold_over",
    "expired",
    "next_due",
    "next_due_fits",
    "next_instant",
    "held_by",
    "unplaced",
    "unplaced_fits",
    "old",
    "jobs",
    "prune_ledger",
]


@pytest.mark.parametrize("rows", [0, 1000])
async def test_hot_statements_use_an_index(tmp_path: Path, rows: int) -> None:
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    if rows:
        await engine.enqueue([draft(delay=float(number % 2)) for number in range(rows)])
    connection = engine._steps.connection
    assert connection is not None
    if rows:
        connection.execute("ANALYZE")
    for name in HOT:
        sql = statements("sqlite/steps.sql")[name]
        names = re.findall(r":(\w+)", sql)
        values = dict.fromkeys(names, 1) if names else [1] * sql.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        assert not [step for step in plan if step.startswith("SCAN job")], (name, plan)
        assert not [step for step in plan if "ORDER BY" in step], (name, plan)
    await engine.close()
