"""One run: let everything work, strike at random, let it end in calm, and judge what is left."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos.judge import Fault, Record, Settlement, Stored, judge
from chaos.notes import notes
from chaos.plan import Kind, plan
from chaos.processes import ChaosError, Processes
from penstock import Penstock
from penstock.operations import finding
from servers.postgres import Postgres

LEASE = 2.0
"""Seconds: short, so that a minute has many rounds."""
PATIENCE = 90.0
"""Real seconds in calm after which a job counts as never ending."""
MOST_SHOWN = 30
"""Faults that a report lists."""
ACTS = {"kill": "killed", "stop": "stopped", "restart": "restarted"}
TRANSACTIONAL = frozenset({"chaos.application.pay", "chaos.application.pay_awaited"})
"""The tasks whose effect must be there exactly once."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run did, and what it broke."""

    kind: Kind
    seed: int
    seconds: float
    record: Record
    blows: Counter[tuple[str, str]]
    rescues: int
    refused: int
    faults: list[Fault]
    place: Path
    """Where the notes and the logs are; removed unless something broke."""

    def __str__(self) -> str:
        record = self.record
        states = Counter(job.state for job in record.stored)
        crashes = sum(job.crashes for job in record.stored)
        lines = [
            f"chaos on {self.kind}, seed {self.seed}, {self.seconds:g} s",
            f"  enqueued   {len(set(record.acknowledged)):,} jobs acknowledged, "
            f"{len(record.stored):,} stored, {len(record.begun):,} attempts",
            f"  ended      {_counted(states)}",
            *(f"  {name:10} {self._blows(act)}" for act, name in ACTS.items()),
            f"  rescued    {self.rescues:,} times; {crashes:,} crashes, "
            f"{self.refused:,} late outcomes refused",
        ]
        if not self.faults:
            return "\n".join([*lines, "  nothing was lost, nothing was settled twice"])
        shown = [f"    {fault.id}  {fault.what}" for fault in self.faults[:MOST_SHOWN]]
        again = f"make chaos KIND={self.kind} SECONDS={self.seconds:g} SEED={self.seed}"
        return "\n".join(
            [
                *lines,
                f"  FAILED     {len(self.faults):,} promises broken:",
                *shown,
                f"  again      {again}",
                f"  logs       {self.place}",
            ]
        )

    def _blows(self, act: str) -> str:
        return _counted({what: count for (done, what), count in self.blows.items() if done == act})


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def run(kind: Kind, *, seed: int, seconds: float, torn: str | None = None) -> Report:
    """Run for so many seconds, then for as long as the jobs take to end."""
    place = Path(tempfile.mkdtemp(prefix=f"chaos-{kind}-"))
    with ExitStack() as stack:
        server = stack.enter_context(Postgres()) if kind == "postgres" else None
        url = server.url() if server else f"sqlite:///{place}/jobs.db"
        if server:
            with server.connect() as connection:
                connection.execute("CREATE TABLE effect (job text NOT NULL)")
        processes = Processes(place, url, LEASE, seed, torn)
        stack.callback(processes.close)
        processes.server = server
        app = stack.enter_context(Penstock(url))
        blows = _strike(place, processes, kind, seed, seconds)
        processes.calm()
        _until_ended(app, processes)
        processes.end()
        record, rescues = _record(app, place, processes, server)
    faults, refused = judge(record), len(notes(place, "refused"))
    if not faults:
        shutil.rmtree(place)
    return Report(
        kind=kind,
        seed=seed,
        seconds=seconds,
        record=record,
        blows=blows,
        rescues=rescues,
        refused=refused,
        faults=faults,
        place=place,
    )


def _strike(
    place: Path, processes: Processes, kind: Kind, seed: int, seconds: float
) -> Counter[tuple[str, str]]:
    blows: Counter[tuple[str, str]] = Counter()
    _until_running(place, processes)
    began = time.monotonic()
    for blow in plan(kind, seed, seconds, LEASE):
        while time.monotonic() - began < blow.at:
            processes.keep_up()
            time.sleep(0.02)
        if processes.strike(blow):
            blows[blow.act, blow.victim] += 1
    return blows


def _until_running(place: Path, processes: Processes) -> None:
    deadline = time.monotonic() + PATIENCE
    while not notes(place, "begun"):
        if time.monotonic() > deadline:
            raise ChaosError(f"no job ever ran; see the logs in {place}")
        processes.keep_up()
        time.sleep(0.02)


def _until_ended(app: Penstock, processes: Processes) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(each.state.is_final for each in app.counts()):
        if time.monotonic() > deadline:
            return
        processes.keep_up()
        time.sleep(0.05)


def _record(
    app: Penstock, place: Path, processes: Processes, server: Postgres | None
) -> tuple[Record, int]:
    effects = []
    if server:
        with server.connect() as connection:
            effects = [str(id) for (id,) in connection.execute("SELECT job FROM effect")]
    jobs = list(_jobs(app))
    ends = notes(place, "settled")
    record = Record(
        acknowledged=[id for line in notes(place, "acknowledged") for id in line],
        cancelled={id for line in notes(place, "cancelled") for id in line},
        begun=[(id, int(claim)) for id, claim in notes(place, "begun")],
        settled=[Settlement(id, int(n), worker, event) for id, n, worker, event in ends],
        stored=[stored for stored, _ in jobs],
        effects=effects,
        troubles=processes.troubles,
    )
    return record, sum(rescues for _, rescues in jobs)


def _jobs(app: Penstock) -> Iterator[tuple[Stored, int]]:
    cursor = None
    while True:
        page = app._facade.call(finding({}, 1000, cursor))
        for job in page.jobs:
            is_transactional = job.task in TRANSACTIONAL
            yield (
                Stored(job.id, job.state.value, job.claim, job.crashes, is_transactional),
                job.rescues,
            )
        if (cursor := page.cursor) is None:
            return
