"""Every finding about workers, queues and clocks, provoked, by its text, on each engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conformance.steps import depose, elect, settle
from penstock import Penstock
from penstock.core.job import Draft, Hold, Job
from penstock.doctor import Expected, Finding, Level, examine
from penstock.engines.engine import Engine
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Ask, Cell, QueueSettings, WorkerInfo
from penstock.errors import EngineUnavailable
from penstock.stores import connect
from penstock.testing import Faulty
from penstock.testing.clock import FakeClock

START = "start a worker: penstock worker MODULE:APP"
EXPECTED = Expected(lease=15.0, keep_finished=3600.0)


class Store:
    """A store, one handle on it that a test may use, and a doctor for it."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        # Stores in memory are shared by their name.
        self.url = f"memory://{id(self)}" if url == "memory://" else url
        self.clock = clock
        self.engine = self.handle()

    def handle(self) -> Engine:
        """A new one, whose time is the test's."""
        if self.url.startswith("postgresql://"):
            return PostgresEngine(self.url, self.clock, follows_clock=True)
        return connect(self.url, self.clock)

    async def put(self, id: str = "a", **fields: Any) -> str:
        draft = Draft(id=id, task=fields.pop("task", "send"), **{"queue": "mail", **fields})
        await self.engine.enqueue([draft])
        return id

    async def staffed(self, id: str = "w", *, leads: bool = True, **fields: Any) -> str:
        facts = {"queues": ("mail",), "tasks": ("send",), "slots": 2, "lease": 15.0}
        await self.engine.join(WorkerInfo(id=id, **{**facts, **fields}))
        if leads:
            await elect(self.engine, id, 3600)
        return id

    async def taken(self, worker: str = "w") -> Job:
        ask = Ask(worker=worker, queues=("mail",), want=1, slots=1)
        (job,) = (await self.engine.exchange(ask)).jobs
        return job

    async def examined(
        self,
        *beats: str,
        expected: Expected = EXPECTED,
        handle: Callable[[], Engine] | None = None,
        **how: Any,
    ) -> list[Finding]:
        """Ask the doctor while time passes, and these workers beat."""
        asked = asyncio.create_task(examine(handle or self.handle, expected, **how))
        while not asked.done():
            sleeps = asyncio.create_task(self.clock.asleep())
            await asyncio.wait({asked, sleeps}, return_when=asyncio.FIRST_COMPLETED)
            sleeps.cancel()
            for worker in beats:
                await self.engine.beat(worker)
            self.clock.advance(0.5)
        return list(await asked)


@pytest.fixture
async def store(url: str, clock: FakeClock) -> AsyncIterator[Store]:
    store = Store(url, clock)
    await store.engine.open()
    yield store
    await store.engine.close()


def told(findings: list[Finding], check: str) -> tuple[str, str, str | None]:
    """Level, text and next step of the one finding of a check."""
    (found,) = [finding for finding in findings if finding.check == check]
    return found.level, found.text, found.next_step


def bad(findings: list[Finding]) -> list[str]:
    """The checks that found something worse than a note, but for what this machine, or a server
    that forgets for the sake of the tests, is to blame.
    """
    worse = [finding for finding in findings if finding.level.is_bad and not forgets(finding)]
    return [each.check for each in worse if each.check not in ("file_system", "disk")]


def forgets(finding: Finding) -> bool:
    """A server was told not to write to its disk."""
    return finding.check == "durability" and "fsync" in finding.text


@pytest.mark.every_engine
async def test_of_a_store_at_work_there_is_nothing_to_say(store):
    await store.staffed()
    await store.put()
    await settle(store.engine, await store.taken(), "succeeded")
    found = await store.examined("w")
    assert bad(found) == []
    assert told(found, "workers") == ("ok", "1 worker has a lease, with 2 slots", None)
    assert told(found, "leases")[1].startswith("every worker sent a heartbeat within ")
    assert told(found, "leader") == ("ok", "the leader is w", None)
    assert told(found, "clock") == ("ok", "the clocks agree", None)
    assert told(found, "repair") == ("ok", "nothing to repair", None)
    assert told(found, "history") == ("ok", "1 finished job is kept", None)
    assert told(found, "versions")[1].startswith("Penstock ")
    assert " answers in 0.0 ms" in told(found, "reach")[1]


# --- workers ------------------------------------------------------------------------------------


async def test_no_worker_and_nothing_to_do_is_worth_a_note(store):
    found = await store.examined()
    assert bad(found) == []
    assert told(found, "workers") == ("note", "no worker is running, and no job is waiting", None)


async def test_no_worker_and_jobs_that_wait(store):
    await store.put()
    await store.put("b", delay=60)
    found = await store.examined()
    assert bad(found) == ["workers"]
    assert told(found, "workers") == (
        "error",
        "no worker is running, and 2 jobs are waiting",
        START,
    )


async def test_a_worker_whose_beat_stands_still(store):
    await store.staffed()
    await store.put()
    await store.taken()
    await store.staffed("lives", leads=False)
    await depose(store.engine)
    await elect(store.engine, "lives", 3600)
    found = await store.examined("lives", watch=2)
    assert bad(found) == ["leases"]
    level, text, step = told(found, "leases")
    assert (level, text[:19]) == ("warning", "no heartbeat for 2s")
    assert text.endswith("from w, with 1 running job")
    assert step is not None
    assert step.startswith("after 15s without one, the leader gives their jobs to other workers")


async def test_a_worker_whose_beat_stands_still_and_nobody_else_leads(store):
    await store.staffed()
    found = await store.examined(watch=2)
    assert bad(found) == ["leases"]
    assert told(found, "leases")[2] == (
        f"no live worker is the leader, so their jobs are not rescued; {START}"
    )


async def test_nobody_leads(store):
    await store.staffed(leads=False)
    found = await store.examined("w")
    assert bad(found) == ["leader"]
    assert told(found, "leader") == (
        "error",
        "there is no leader: jobs of dead workers are not rescued, and nothing is pruned",
        f"{START} (without --no-leads); the workers that have a lease may be dead",
    )


async def test_a_leader_without_a_lease(store):
    await store.staffed(leads=False)
    await elect(store.engine, "other", 60)
    found = await store.examined("w")
    assert bad(found) == []
    level, text, _ = told(found, "leader")
    assert (level, text[:29]) == ("note", "the leader other has no lease")


@pytest.mark.parametrize("leads", [True, False])
async def test_running_jobs_without_a_lease(store, leads):
    await store.staffed()
    await store.put()
    await store.taken()
    await store.engine.leave("w")
    await depose(store.engine)
    await store.staffed("lives", leads=leads)
    found = await store.examined("lives")
    level, text, step = told(found, "orphans")
    assert (level, text) == ("error", "1 running job belongs to workers without a lease: w")
    assert step == (
        "the leader (lives) should rescue them: restart that worker"
        if leads
        else f"there is no leader to rescue them; {START}"
    )


async def test_a_queue_that_nobody_serves(store):
    await store.staffed(queues=("mails",))
    await store.put()
    found = await store.examined("w")
    assert bad(found) == ["unserved"]
    assert told(found, "unserved") == (
        "warning",
        "no worker serves queue 'mail', where 1 job waits",
        f"{START} --queues mail; or did you mean queue 'mails'?",
    )


async def test_leases_that_do_not_agree(store):
    await store.staffed()
    await store.staffed("v", lease=5.0)
    found = await store.examined("w", "v")
    assert bad(found) == ["settings"]
    assert told(found, "settings") == (
        "warning",
        "workers have different leases: 5s: v; 15s: w",
        "give all workers the same lease: the leader judges them by its own",
    )


async def test_a_lease_that_is_not_the_applications(store):
    await store.staffed()
    expected = Expected(lease=30.0, keep_finished=3600.0, tasks={"send": "mail"})
    found = await store.examined("w", expected=expected)
    assert bad(found) == ["settings"]
    assert told(found, "settings")[1] == ("workers have a lease of 15s, and this application 30s")


# --- queues and jobs ----------------------------------------------------------------------------


async def test_a_paused_queue(store):
    await store.staffed()
    await store.engine.set_queue("mail", QueueSettings(paused=True, note="provider is down"))
    assert told(await store.examined("w"), "paused")[0] == "note"
    await store.put()
    store.clock.advance(3)
    found = await store.examined("w")
    assert bad(found) == ["paused"]
    level, text, step = told(found, "paused")
    assert level == "warning"
    assert text.startswith(
        "queue 'mail' is paused (provider is down): 1 job waits, the oldest known since 2025-06-15"
    )
    assert step == "to continue: penstock queues resume mail"


@pytest.mark.parametrize("leads", [True, False])
async def test_due_jobs_that_nobody_makes_ready(store, leads):
    if leads:
        await store.staffed()
    await store.put(delay=5)
    store.clock.advance(65)
    found = await store.examined("w") if leads else await store.examined()
    level, text, step = told(found, "overdue")
    assert level == "warning"
    assert text.startswith("1 job is overdue by up to 1m")
    assert text.endswith(" and not ready yet")
    assert step == (
        "the leader (w) does not make them ready: restart that worker"
        if leads
        else "start a worker that leads (without --no-leads)"
    )


async def test_a_task_that_no_worker_knows(store):
    await store.staffed(tasks=("mail.send",))
    await store.put()
    held = {"hold": Hold.UNKNOWN_TASK, "hold_cause": "send"}
    await settle(store.engine, await store.taken(), "released", **held)
    await store.put("b", task="send")
    await store.put("c", task="other")
    found = await store.examined("w")
    assert bad(found) == ["unknown_task", "unknown_task"]
    other, send = [each for each in found if each.check == "unknown_task"]
    assert other.text == "no worker has task 'other': 1 job waits"
    assert (send.text, send.next_step) == (
        "no worker has task 'send': 2 jobs wait",
        "start a worker whose code declares it; workers have 'mail.send': did you mean that?",
    )


async def test_a_task_that_the_application_does_not_declare(store):
    await store.staffed(tasks=("send", "deliver"))
    await store.put()
    expected = Expected(lease=15.0, keep_finished=3600.0, tasks={"deliver": "mail"})
    found = await store.examined("w", expected=expected)
    assert bad(found) == ["undeclared"]
    assert told(found, "undeclared") == (
        "warning",
        "this application does not declare task 'send': 1 job waits",
        "keep it under its old name until they have run, or check that its module is imported",
    )


async def test_of_very_many_jobs_only_some_are_looked_at_and_it_says_so(store, monkeypatch):
    monkeypatch.setattr("penstock.doctor.snapshot.SAMPLE", 2)
    monkeypatch.setattr("penstock.doctor.queues.SAMPLE", 2)
    await store.staffed(tasks=("deliver",))
    for id in "abc":
        await store.put(id)
    text = "no worker has task 'send': at least 2 jobs wait"
    assert told(await store.examined("w"), "unknown_task")[1] == text


async def test_a_worker_that_runs_old_code(store):
    await store.staffed()
    tasks = {"send": "mail", "resize": "mail", "elsewhere": "other"}
    expected = Expected(lease=15.0, keep_finished=3600.0, tasks=tasks)
    found = await store.examined("w", expected=expected)
    assert bad(found) == ["old_code"]
    assert told(found, "old_code") == (
        "warning",
        "worker w does not have resize of this application",
        "it runs different code: restart it, or send it SIGHUP",
    )


@pytest.mark.every_engine
async def test_a_hold_without_a_cause_is_found_and_lifted_when_asked(store):
    await store.staffed(tasks=())
    await store.put()
    held = {"hold": Hold.UNKNOWN_TASK, "hold_cause": "send"}
    await settle(store.engine, await store.taken(), "released", **held)
    await store.staffed()
    for _ in range(2):  # to look changes nothing
        found = await store.examined("w")
        assert bad(found) == ["repair"]
        assert told(found, "repair") == (
            "warning",
            "found 1 hold without a cause",
            "repair it: penstock doctor --repair; the leader does so every minute, so check it too",
        )
    assert told(await store.examined("w", repair=True), "repair") == (
        "note",
        "repaired 1 hold without a cause",
        None,
    )
    assert bad(await store.examined("w")) == []


async def test_dead_letters_are_counted(store):
    await store.staffed()
    await store.put()
    await settle(store.engine, await store.taken(), "failed")
    found = await store.examined("w")
    assert bad(found) == []
    assert told(found, "failed") == (
        "note",
        "1 job has failed: mail 1",
        "list them: penstock jobs list --state failed; then retry or purge them",
    )


async def test_history_that_nobody_prunes(store):
    await store.staffed()
    await store.put(keep=3600.0)
    await settle(store.engine, await store.taken(), "succeeded")
    store.clock.advance(3600 * 27)
    await elect(store.engine, "w", 3600)
    found = await store.examined("w")
    assert bad(found) == ["history"]
    assert told(found, "history") == (
        "warning",
        "1 finished job is kept, 1 of them for longer than they are to be kept",
        "check that a worker leads: it deletes them",
    )


async def test_history_of_a_task_that_keeps_its_jobs_for_longer_is_no_fault(store):
    await store.staffed()
    await store.put(keep=90 * 86400.0)
    await settle(store.engine, await store.taken(), "succeeded")
    await store.put("b")
    await settle(store.engine, await store.taken(), "failed")
    store.clock.advance(3600 * 27)
    await elect(store.engine, "w", 3600)
    found = await store.examined("w")
    assert "history" not in bad(found)


async def test_a_great_history_is_worth_a_note(store, monkeypatch):
    monkeypatch.setattr("penstock.doctor.queues.MUCH_HISTORY", 0)
    await store.staffed()
    await store.put()
    await settle(store.engine, await store.taken(), "succeeded")
    found = await store.examined("w")
    assert told(found, "history") == (
        "note",
        "1 finished job is kept",
        "lower keep_finished if they are not needed for that long",
    )


# --- clocks and reach ---------------------------------------------------------------------------


@pytest.mark.every_engine
async def test_a_clock_that_went_back_shows_by_a_job(store):
    await store.staffed()
    await store.put()
    store.clock.jump(-100)
    await elect(store.engine, "w", 3600)
    found = await store.examined("w")
    assert bad(found) == ["clock"]
    level, text, step = told(found, "clock")
    assert level == "warning"
    assert text.endswith(
        "in the future: another machine's clock is ahead, or this machine's clock was set back"
    )
    assert step is not None
    assert step.startswith("synchronize the clocks of all machines with NTP (timedatectl)")


@pytest.mark.every_engine
async def test_a_clock_that_is_behind_shows_by_a_worker(store):
    store.clock.jump(60)
    await store.staffed()
    store.clock.jump(-60)
    found = await store.examined("w")
    assert told(found, "clock")[1].startswith("worker w joined ")


@pytest.mark.every_engine
async def test_a_store_with_a_clock_of_its_own_that_is_ahead(store):
    class Ahead(Faulty):
        async def cell(self, name: str) -> Cell:
            cell = await super().cell(name)
            return replace(cell, now=cell.now + 30)

    await store.staffed()
    found = await store.examined("w", handle=lambda: Ahead(store.handle()))
    assert bad(found) == ["clock"]
    assert told(found, "clock")[1] == "the store's clock is 30s ahead of the one here"


@pytest.mark.every_engine
async def test_a_store_that_goes_away_while_it_is_looked_at(store):
    def handle() -> Engine:
        faulty = Faulty(store.handle())
        faulty.fail("counts", EngineUnavailable("the store", "gone"))
        return faulty

    found = await store.examined(handle=handle)
    assert bad(found) == ["reach"]
    assert told(found, "reach")[1].startswith("the store cannot be reached: gone")


async def test_a_store_that_answers_slowly(store):
    def handle() -> Engine:
        faulty = Faulty(store.handle())
        faulty.delay("end_leases", 3.0)
        return faulty

    found = await store.examined(handle=handle)
    level, text, step = told(found, "reach")
    assert level == "warning"
    assert "answers in 3" in text
    assert (
        step == "look for a process that holds the write lock for long, or a slow disk or network"
    )


# --- the app ------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_an_app_has_a_doctor(app):
    app.enqueue("send")
    found = app.doctor()
    assert bad(list(found)) == ["workers"]


@pytest.mark.every_engine
async def test_an_app_has_a_doctor_that_is_awaited(app):
    await app.aenqueue("send")
    assert bad(list(await app.adoctor(watch="1s"))) == ["workers"]


def test_the_tasks_of_an_app_are_compared_with_those_of_its_workers(url):
    shared = "memory://compared" if url == "memory://" else url
    with Penstock(shared) as app, Penstock(shared) as other:
        app.task(name="send")(lambda: None)
        old = other.task(name="old")(lambda: None)
        with other.worker_thread(lease=2):
            old.enqueue().result(timeout=60)
            found = app.doctor()
    assert {"old_code", "settings"} <= set(bad(list(found)))


@pytest.mark.every_engine
def test_a_real_worker_is_seen_to_live(app):
    send = app.task(name="send")(lambda: None)
    with app.worker_thread(lease=2):
        send.enqueue().result(timeout=60)
        found = list(app.doctor(watch="60s"))
    assert told(found, "leases")[0] == "ok"
    assert told(found, "leader")[0] == "ok"


def test_levels_say_whether_a_person_should_act():
    assert [level for level in Level if level.is_bad] == [Level.WARNING, Level.ERROR]


def test_every_check_is_in_the_guide():
    root = Path(__file__).parents[2]
    modules = [
        *(root / "src/penstock/doctor").glob("*.py"),
        *(root / "src/penstock/engines/memory").glob("*.py"),
        *(root / "src/penstock/engines/sqlite").glob("*.py"),
    ]
    checks = {
        check for module in modules for check in re.findall(r'check="(\w+)"', module.read_text())
    }
    pages = ("find-out-why.md", "postgresql-operations.md")
    guide = "".join((root / "docs/how-to" / page).read_text() for page in pages)
    assert len(checks) > 20
    assert checks <= set(re.findall(r"`(\w+)`", guide))
