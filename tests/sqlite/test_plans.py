"""The hot statements keep their indexes: none reads the whole table, none sorts the backlog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.steps import claim, draft, enqueue_jobs, everything, joined, outcome, send
from penstock.core.job import Hold, State, Verdict
from penstock.engines.records import QueueSettings
from penstock.engines.sql_files import statements
from penstock.engines.sqlite.connection import SQL_FILES
from penstock.engines.sqlite.engine import SqliteEngine

HOT = [
    "head",
    "head_of_many",
    "succeed",
    "succeed_all",
    "claim",
    "save",
    "due",
    "hold_over",
    "expired",
    "next_due",
    "is_blocked",
    "next_open",
    "first_in_order",
    "next_instant",
    "held_by",
    "cancels",
    "job",
    "promote",
    "could_have",
    "old",
    "jobs",
    "unique_keys",
    "prune_ledger",
    "running",
    "note_key",
    "note_ends",
    "notes",
    "drop_notes",
    "has_notes",
    "first_place",
    "greatest_place",
    "active_lines",
    "line_head",
    "running_keys",
    "ready_after",
    "label",
    "lines_after",
    "line_after",
    "idle_after",
    "prune_lines",
]

SORTED = ["cancels", "running"]
"""They walk and sort what runs or is open, never what waits."""


@pytest.mark.parametrize("rows", [0, 1000])
async def test_hot_statements_use_an_index(tmp_path: Path, rows: int) -> None:
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    if rows:
        await engine.set_queue("default", QueueSettings(fair=True))
        drafts = [draft(delay=float(number % 2), key=f"k{number % 50}") for number in range(rows)]
        await engine.enqueue(drafts)
        await claim(engine, want=10)
    connection = engine._connection.raw
    assert connection is not None
    if rows:
        connection.execute("ANALYZE")
    for name in HOT:
        sql = statements(*SQL_FILES)[name]
        names = re.findall(r":(\w+)", sql)
        values = dict.fromkeys(names, 1) if names else [1] * _places(sql)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        scans = [step for step in plan if re.match("SCAN (job|key_line|line|note|k) ?", step)]
        assert not [step for step in scans if "job_running" not in step], (name, plan)
        if name not in SORTED:
            assert not [step for step in plan if "ORDER BY" in step], (name, plan)
        if name == "next_due":
            assert any("job_unhold_in (queue=?" in step for step in plan), (name, plan)
        if name in ("head", "head_of_many"):
            assert any("job_claim (queue=? AND priority<?)" in step for step in plan), (name, plan)
        if name == "succeed_all":
            found = [step for step in plan if step.startswith("SEARCH job ")]
            assert found == ["SEARCH job USING INTEGER PRIMARY KEY (rowid=?)"], (name, plan)
        if name == "first_in_order":
            assert any("job_claim (queue=?)" in step for step in plan), (name, plan)
        if name in ("is_blocked", "next_open"):
            reads = [step for step in plan if " job " in step]
            assert all("INDEX job_open (queue=?" in step for step in reads), (name, plan)
    await engine.close()


def _places(sql: str) -> int:
    """How many values a statement takes; ``?1`` may stand in it twice."""
    return len(set(re.findall(r"\?\d", sql))) or sql.count("?")


async def test_counts_read_no_job_that_ended_long_ago(tmp_path: Path) -> None:
    """Each part goes by an index of its own, unless what ended is asked for."""
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    connection = engine._connection.raw
    assert connection is not None
    sql = statements("sqlite/reads.sql")
    for name in ("ready", "held", "scheduled", "running", "failed", "ended_since"):
        fits = sql["if_finished_since"] if name == "ended_since" else "true"
        found = connection.execute(
            "EXPLAIN QUERY PLAN " + sql[f"count_{name}"].replace("{fits}", fits),
            {"finished_since": 1.0},
        )
        reads = [step for *_, step in found if step.startswith(("SCAN job", "SEARCH job"))]
        assert len(reads) == 1, (name, reads)
        assert "INDEX job_" in reads[0], (name, reads)
    await engine.close()


async def test_many_releases_read_the_workers_once(tmp_path: Path) -> None:
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    await enqueue_jobs(engine, 20, task="unheard of")
    jobs = await claim(engine, want=20)
    hold = {"hold": Hold.UNKNOWN_TASK, "hold_cause": "unheard of"}
    seen: list[str] = []
    assert engine._connection.raw is not None
    engine._connection.raw.set_trace_callback(seen.append)
    await send(engine, jobs[0].worker, *(outcome(job, "released", **hold) for job in jobs))
    assert len([statement for statement in seen if "info FROM worker" in statement]) == 1
    assert len([job for job in await everything(engine) if job.hold]) == 20
    await engine.close()


async def test_a_page_of_held_jobs_is_read_in_its_order(tmp_path: Path) -> None:
    """To lift many holds in batches must not read all that are left for each batch."""
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    connection = engine._connection.raw
    assert connection is not None
    sql = statements(*SQL_FILES)
    find = sql["find"].replace("{fits}", sql["if_hold"])
    values = {"hold": Hold.UNKNOWN_TASK, "before": 100, "limit": 10}
    plan = [step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {find}", values)]
    assert plan == ["SEARCH job USING INDEX job_held (hold=? AND rowid<?)"]
    await engine.close()


async def test_an_entry_that_is_wrong_or_forgotten_costs_a_look_and_nothing_else(
    tmp_path: Path,
) -> None:
    engine = SqliteEngine(str(tmp_path / "jobs.db"))
    await engine.open()
    worker = await joined(engine)
    await enqueue_jobs(engine, 6)
    jobs = await claim(engine, worker=worker, want=6)
    entries = engine._entries
    assert entries.keys() == {job.id for job in jobs}
    entries[jobs[0].id], entries[jobs[1].id] = entries[jobs[1].id], entries[jobs[0].id]
    del entries[jobs[2].id]
    entries[jobs[3].id] = 10**6

    answer = await send(engine, worker, *[outcome(job, "succeeded") for job in jobs])

    assert set(answer.verdicts) == {Verdict.DONE}
    stored = await engine.get([job.id for job in jobs])
    assert [job and job.state for job in stored] == [State.SUCCEEDED] * 6
    assert not engine._entries
    await engine.close()
