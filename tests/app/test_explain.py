"""Every reason a job can have to be where it is, by its text, on each engine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conformance.steps import bury, claim_one, elect, settle
from penstock.core.job import Draft, ErrorRecord, Hold, Job
from penstock.engines import changes
from penstock.engines.engine import Engine
from penstock.engines.postgres.engine import PostgresEngine
from penstock.engines.records import Ask, QueueSettings, Report, WorkerInfo
from penstock.explain import Code, Explanation, explain
from penstock.explain.reasons import argument, near, span
from penstock.stores import connect
from penstock.testing.clock import FakeClock

START = "start a worker: penstock worker MODULE:APP --queues mail"


@pytest.fixture
async def engine(url: str, clock: FakeClock) -> AsyncIterator[Engine]:
    """A handle on an empty store that nobody serves."""
    engine = connect(url, clock)
    if isinstance(engine, PostgresEngine):
        engine = PostgresEngine(url, clock, follows_clock=True)
    await engine.open()
    yield engine
    await engine.close()


async def put(engine: Engine, id: str = "a", **fields: Any) -> str:
    draft = Draft(id=id, task=fields.pop("task", "send"), **{"queue": "mail", **fields})
    await engine.enqueue([draft])
    return id


async def staffed(engine: Engine, id: str = "w", **fields: Any) -> str:
    """A worker that leads, serves the queue and knows the task, with two threads."""
    facts: dict[str, Any] = {
        "queues": ("mail",),
        "tasks": ("send",),
        "slots": 2,
        "rooms": {"sync": 2},
        "kinds": {"send": "sync"},
        "lease": 15.0,
        "host": "ada",
        "pid": 7,
    }
    await engine.join(WorkerInfo(id=id, **{**facts, **fields}))
    await elect(engine, id, 3600)
    return id


async def taken(engine: Engine, worker: str = "w", want: int = 1, **more: Any) -> list[Job]:
    ask = Ask(worker=worker, queues=("mail",), want=want, **{"slots": want, **more})
    return list((await engine.exchange(ask)).jobs)


def error(job: Job, message: str = "no route", kind: str = "OSError") -> ErrorRecord:
    return ErrorRecord(attempt=job.attempt, at=0.0, kind=kind, message=message)


def told(found: Explanation, code: str) -> tuple[str, str | None]:
    """The text and the next step of one reason."""
    (reason,) = [reason for reason in found.reasons if reason.code == code]
    return reason.text, reason.next_step


# --- it is not there, or has ended --------------------------------------------------------------


async def test_an_id_that_was_never_there(engine):
    found = await explain(engine, "nobody")
    assert (found.task, found.state, found.codes) == (None, None, (Code.GONE,))
    assert found.verdict == (
        "the store does not have this job: it was pruned, purged or never enqueued here"
    )
    assert "check the id, and that the code" in str(found)


async def test_a_job_that_succeeded(engine, clock):
    await staffed(engine)
    await put(engine)
    await settle(engine, (await taken(engine))[0], "succeeded")
    clock.advance(90)
    found = await explain(engine, "a")
    assert found.verdict == (
        "succeeded: it succeeded 1m30s ago, at 2025-06-15 15:06:40 UTC, in 1 attempt"
    )


async def test_a_job_that_failed(engine):
    await staffed(engine)
    await put(engine)
    (job,) = await taken(engine)
    await settle(engine, job, "failed", reason="OSError: no route", error=error(job))
    text, step = told(await explain(engine, "a"), "failed")
    assert text == (
        "it failed 0s ago, at 2025-06-15 15:06:40 UTC, after 1 attempt: OSError: no route"
    )
    assert step == ("read its errors: penstock jobs show a; to run it again: penstock jobs retry a")


async def test_a_job_whose_reason_is_not_its_last_error(engine):
    await staffed(engine)
    await put(engine)
    (job,) = await taken(engine)
    await settle(engine, job, "failed", reason="gave up", error=error(job))
    text, _ = told(await explain(engine, "a"), "failed")
    assert text.endswith("gave up; its last error was OSError: no route")


async def test_a_job_that_may_have_run(engine):
    await staffed(engine)
    await put(engine, at_most_once=True)
    await taken(engine)
    await bury(engine, "w")
    text, step = told(await explain(engine, "a"), "failed")
    assert "after 1 attempt: may have run" in text
    assert step == "check whether it did its work; if not: penstock jobs retry a"


async def test_a_job_that_was_cancelled(engine):
    await put(engine)
    await changes.cancel(engine, ["a"], "no longer needed")
    text, step = told(await explain(engine, "a"), "cancelled")
    assert text == "it was cancelled 0s ago, at 2025-06-15 15:06:40 UTC: no longer needed"
    assert step == "to run it again: penstock jobs retry a"


async def test_a_job_that_expired(engine, clock):
    await put(engine, expires_in=10)
    clock.advance(30)
    text, step = told(await explain(engine, "a"), "expired")
    assert text == "it expired 20s ago and will not start"
    assert step == "it will be marked as cancelled once a worker is running: none has a lease now"
    await staffed(engine)
    _, step = told(await explain(engine, "a"), "expired")
    assert step == "it will be marked as cancelled when a worker or the leader next looks"
    await engine.promote(10)
    text, _ = told(await explain(engine, "a"), "expired")
    assert text == "it expired 0s ago, at 2025-06-15 15:07:10 UTC: it had not started by then"


async def test_a_job_that_was_superseded(engine):
    await staffed(engine)
    await put(engine, unique="welcome:7", unique_until="start")
    (job,) = await taken(engine)
    await put(engine, "b", unique="welcome:7")
    await settle(engine, job, "retry", delay=5)
    text, step = told(await explain(engine, "a"), "superseded")
    assert text.endswith("UTC: job b has its unique key 'welcome:7'")
    assert step == "see penstock explain b"


# --- it waits for an instant or a cause of its own ----------------------------------------------


async def test_a_job_for_later(engine):
    await staffed(engine)
    await put(engine, delay=300)
    found = await explain(engine, "a")
    assert found.codes == (Code.SCHEDULED,)
    assert found.verdict == (
        "scheduled: it is scheduled to start in 5m, at 2025-06-15 15:11:40 UTC"
    )
    assert found.reasons[0].until_at == found.asked_at + 300


async def test_what_will_keep_a_job_for_later_is_said_as_well(engine):
    await put(engine, delay=300)
    await engine.set_queue("mail", QueueSettings(paused=True))
    found = await explain(engine, "a")
    assert found.codes == (Code.SCHEDULED, Code.PAUSED, Code.NO_WORKER)
    assert found.verdict.endswith("(and 2 more)")


async def test_a_retry_names_the_failure(engine):
    await staffed(engine)
    await put(engine)
    (job,) = await taken(engine)
    await settle(engine, job, "retry", delay=12, error=error(job))
    found = await explain(engine, "a")
    assert found.codes == (Code.RETRY,)
    assert told(found, "retry")[0] == (
        "it will be retried in 12s, at 2025-06-15 15:06:52 UTC: attempt 1 failed "
        "(OSError: no route)"
    )


async def test_a_snooze_names_what_the_task_said(engine):
    await staffed(engine)
    await put(engine)
    await settle(engine, (await taken(engine))[0], "snooze", delay=3600, reason="not yet there")
    text, _ = told(await explain(engine, "a"), "snoozed")
    assert text == (
        "its task snoozed it (not yet there): it runs again in 1h, at 2025-06-15 16:06:40 UTC"
    )


HOLDS = [
    (Hold.LIMIT, "a limit on what may run at once"),
    (Hold.RATE, "a limit on how many may start in a while"),
    (Hold.BREAKER, "an open breaker"),
    (Hold.DEPENDENCY, "what it depends on"),
    (Hold.MOVING, "its move to another store"),
]


def test_every_hold_has_its_words():
    assert {hold for hold, _ in HOLDS} == set(Hold) - {Hold.UNKNOWN_TASK}


@pytest.mark.parametrize(("hold", "words"), HOLDS)
async def test_a_hold_names_its_cause_and_its_instant(engine, hold, words):
    await staffed(engine)
    await put(engine)
    held = {"hold": hold, "hold_cause": "the api"}
    await settle(engine, (await taken(engine))[0], "released", delay=30, **held)
    found = await explain(engine, "a")
    assert found.codes == (hold,)
    assert told(found, hold) == (f"it is held by {words}: the api, for another 30s", None)
    assert found.reasons[0].until_at == found.asked_at + 30


@pytest.mark.parametrize(("hold", "words"), HOLDS)
async def test_a_hold_without_an_instant_names_its_cause(engine, hold, words):
    await staffed(engine)
    await put(engine)
    await settle(engine, (await taken(engine))[0], "released", hold=hold, hold_cause="the api")
    found = await explain(engine, "a")
    assert found.codes == (hold,)
    assert told(found, hold) == (f"it is held by {words}: the api", None)
    assert found.reasons[0].until_at is None


async def test_a_task_that_nobody_knows(engine):
    await staffed(engine, tasks=("mail.send", "resize"))
    await put(engine)
    held = {"hold": Hold.UNKNOWN_TASK, "hold_cause": "send"}
    await settle(engine, (await taken(engine))[0], "released", **held)
    found = await explain(engine, "a")
    assert found.codes == (Code.UNKNOWN_TASK,)
    assert told(found, "unknown_task") == (
        "it is held until a worker joins that has task 'send': none has it now",
        "did you mean 'mail.send'? if not, start a worker whose code declares 'send'",
    )


async def test_a_hold_whose_cause_has_gone(engine):
    await staffed(engine, tasks=())
    await put(engine)
    held = {"hold": Hold.UNKNOWN_TASK, "hold_cause": "send"}
    await settle(engine, (await taken(engine))[0], "released", **held)
    await staffed(engine, "new", tasks=("send",))  # and dies before it lifts the hold
    text, step = told(await explain(engine, "a"), "no_cause")
    assert text == "it is held because no worker had task 'send', but one has it now"
    assert step is not None
    assert "penstock doctor --repair" in step


# --- nobody is there to run it ------------------------------------------------------------------


async def test_a_queue_that_is_paused(engine):
    await staffed(engine)
    await put(engine)
    await engine.set_queue("mail", QueueSettings(paused=True, note="the provider is down"))
    found = await explain(engine, "a")
    assert found.codes == (Code.PAUSED,)
    assert told(found, "paused") == (
        "queue 'mail' is paused: the provider is down",
        "to continue: penstock queues resume mail",
    )
    assert str(found) == (
        "job a: ready: queue 'mail' is paused: the provider is down\n"
        "- to continue: penstock queues resume mail"
    )


async def test_no_worker_at_all(engine):
    await put(engine)
    found = await explain(engine, "a")
    assert found.codes == (Code.NO_WORKER,)
    assert told(found, "no_worker") == ("no worker is running: none has a lease", START)


async def test_no_worker_for_the_queue(engine):
    await staffed(engine, queues=("mails", "bulk"))
    await put(engine)
    found = await explain(engine, "a")
    assert found.codes == (Code.NOT_SERVED,)
    assert told(found, "not_served") == (
        "no worker serves queue 'mail': 1 worker serves bulk, mails",
        f"{START}; or did you mean queue 'mails'?",
    )


async def test_no_worker_that_knows_the_task(engine):
    await staffed(engine, tasks=("sendd",))
    await put(engine)
    found = await explain(engine, "a")
    assert told(found, "not_known") == (
        "worker w, the only one that serves its queue, does not have task 'send'",
        "did you mean 'sendd'? if not, start a worker whose code declares 'send'",
    )
    await staffed(engine, "v", tasks=())
    await staffed(engine, "w", tasks=())
    assert told(await explain(engine, "a"), "not_known") == (
        "none of 2 workers that serve its queue has any task, so not 'send'",
        "start a worker that imports the module that declares it: "
        "penstock worker MODULE:APP --import MODULE",
    )


# --- it stands in line --------------------------------------------------------------------------


async def test_a_job_that_is_about_to_run_is_not_called_stuck(engine):
    await staffed(engine)
    await put(engine)
    found = await explain(engine, "a")
    assert found.codes == (Code.NEXT,)
    assert found.verdict == (
        "ready: it is about to run: no job is ahead of it, and 1 worker has room for it"
    )


async def test_a_job_that_falls_due_is_about_to_run(engine, clock):
    await staffed(engine)
    await put(engine, delay=10)
    clock.advance(11)
    found = await explain(engine, "a")
    assert found.codes == (Code.DUE,)
    assert found.verdict == "scheduled: it is due and about to run: 1 worker has room for it"


@pytest.mark.every_engine
async def test_a_job_of_a_fair_queue_is_about_to_run(engine):
    await staffed(engine)
    await engine.set_queue("mail", QueueSettings(fair=True))
    await put(engine, key="big")
    assert told(await explain(engine, "a"), "next") == (
        "it is about to run: no job is ahead of it, and 1 worker has room for it",
        None,
    )


async def test_a_job_that_nobody_takes_though_they_could(engine, clock):
    await staffed(engine)
    await put(engine)
    clock.advance(60)
    found = await explain(engine, "a")
    assert told(found, "overlooked") == (
        "nothing in the store prevents it from running, and it has been ready for 1m",
        "1 worker has room for it but may be stopping, or stuck: penstock doctor checks whether "
        "they are alive",
    )


@pytest.mark.every_engine
async def test_jobs_that_come_before_it(engine):
    await staffed(engine, rooms={"sync": 9}, slots=9)
    for number in range(3):
        await put(engine, f"before-{number}", priority=0 if number else 5)
    await put(engine)
    text, step = told(await explain(engine, "a"), "line")
    assert text == "3 jobs of queue 'mail' are ahead of it, 2 of them more urgent"
    assert step is not None
    assert "start more workers" in step
    assert told(await explain(engine, "before-0"), "line")[0] == (
        "2 jobs of queue 'mail' are ahead of it, 2 of them more urgent"
    )
    assert told(await explain(engine, "before-2"), "line")[0] == (
        "1 job of queue 'mail' is ahead of it"
    )


async def test_one_job_that_is_more_urgent_comes_before_it(engine):
    await staffed(engine, rooms={"sync": 9}, slots=9)
    await put(engine, "before", priority=0)
    await put(engine)
    text = "1 job of queue 'mail' is ahead of it, a more urgent one"
    assert told(await explain(engine, "a"), "line")[0] == text


@pytest.mark.every_engine
async def test_keys_that_come_before_it_in_a_fair_queue(engine):
    await staffed(engine)
    await engine.set_queue("mail", QueueSettings(fair=True))
    for number in range(3):
        await put(engine, f"big-{number}", key="big")
    await put(engine, "other")
    text, _ = told(await explain(engine, "big-2"), "line")
    assert text == (
        "2 jobs of its key in queue 'mail' are ahead of it, and other keys take turns with it; "
        "the waiting jobs by key: big 3, no key 1"
    )


async def test_max_running_is_reached(engine):
    await staffed(engine)
    await engine.set_queue("mail", QueueSettings(max_running=1))
    await put(engine, "first")
    await taken(engine)
    await put(engine)
    found = await explain(engine, "a")
    assert found.codes == (Code.MAX_RUNNING,)
    assert told(found, "max_running") == (
        "queue 'mail' runs 1 of max_running 1 jobs: first",
        "it starts when one of them ends; to run more at once: "
        "penstock queues set --max-running N mail",
    )


@pytest.mark.every_engine
async def test_an_ordered_queue_waits_for_what_runs_and_for_what_is_open(engine):
    await staffed(engine)
    await engine.set_queue("mail", QueueSettings(ordered=True))
    await put(engine, "first")
    (job,) = await taken(engine)
    await put(engine)
    told_twice = (
        "queue 'mail' runs one job at a time, and first has not ended",
        "see penstock explain first",
    )
    assert told(await explain(engine, "a"), "ordered") == told_twice
    await settle(engine, job, "retry", delay=60, error=error(job))
    assert told(await explain(engine, "a"), "ordered") == told_twice
    assert (await explain(engine, "first")).codes == (Code.RETRY,)


async def test_all_slots_of_its_kind_are_taken(engine):
    kinds = {"send": "sync", "resize": "sync", "poll": "async"}
    await staffed(engine, kinds=kinds, tasks=tuple(kinds), rooms={"sync": 2, "async": 50})
    await put(engine, "one")
    await put(engine, "two", task="resize")
    await taken(engine, want=2)
    await put(engine)
    await put(engine, "b", task="poll")
    found = await explain(engine, "a")
    assert found.codes == (Code.BUSY,)
    assert told(found, "busy") == (
        "no sync slot is free on the 1 worker that could run it: 2 of 2 are taken "
        "(resize 1, send 1)",
        "it starts when one of them ends; start another worker, or raise --threads",
    )
    assert Code.BUSY not in (await explain(engine, "b")).codes


async def test_the_free_slots_are_kept_for_more_urgent_jobs(engine):
    await staffed(engine, reserve={0: 1})
    await put(engine, "one")
    await taken(engine)
    await put(engine)
    await put(engine, "urgent", priority=0)
    text, _ = told(await explain(engine, "a"), "busy")
    assert "1 of 2 are taken (send 1); the others are reserved for more urgent jobs" in text
    assert (await explain(engine, "urgent")).codes == (Code.NEXT,)


async def test_no_slot_is_kept_once_all_are_taken(engine):
    await staffed(engine, reserve={0: 1})
    await put(engine, "first", priority=0)
    await put(engine, "second", priority=0)
    assert len(await taken(engine, want=2)) == 2
    await put(engine)
    text, _ = told(await explain(engine, "a"), "busy")
    assert text.endswith("2 of 2 are taken (send 2)")


async def test_a_worker_that_does_not_say_what_room_it_has_is_counted_as_a_whole(engine):
    await staffed(engine, rooms={}, kinds={}, slots=1)
    await put(engine, "one")
    await taken(engine)
    await put(engine)
    text, _ = told(await explain(engine, "a"), "busy")
    assert text.startswith("no slot is free on the 1 worker that could run it: 1 of 1 are taken")


# --- a worker has it ----------------------------------------------------------------------------


@pytest.mark.every_engine
async def test_a_job_that_runs(engine, clock):
    await staffed(engine)
    await put(engine)
    (job,) = await taken(engine)
    await engine.exchange(
        Ask(worker="w", reports=(Report(job="a", claim=1, fraction=0.5, note="page 3"),))
    )
    clock.advance(12)
    found = await explain(engine, "a")
    assert found.codes == (Code.RUNNING,)
    assert found.verdict == (
        "running: attempt 1 has been running for 12s on worker w (process 7 on ada), 50% done "
        "(page 3)"
    )
    assert found.reasons[0].since_at == job.claimed_at


async def test_a_job_that_waits_in_its_workers_hands(engine, clock):
    await staffed(engine)
    await put(engine)
    await taken(engine, slots=0)
    clock.advance(2.5)
    text, _ = told(await explain(engine, "a"), "claimed")
    assert text == (
        "worker w (process 7 on ada) has held it for 2.5s and starts it when a slot is free"
    )


async def test_a_cancellation_that_was_not_heard_yet(engine):
    await staffed(engine)
    await put(engine)
    await taken(engine)
    await changes.cancel(engine, ["a"], "enough")
    found = await explain(engine, "a")
    assert found.codes == (Code.CANCELLING, Code.RUNNING)
    text, step = told(found, "cancelling")
    assert text == "its cancellation was requested (enough), and its attempt has not ended"
    assert step is not None
    assert "its worker is told within a second" in step


async def test_a_job_whose_worker_has_no_lease(engine, clock):
    await staffed(engine)
    await put(engine)
    await taken(engine)
    await engine.leave("w")
    clock.advance(5)
    found = await explain(engine, "a")
    assert found.codes == (Code.NO_LEASE,)
    assert told(found, "no_lease") == (
        "worker w has held it for 5s and no longer has a lease",
        "the leader (w) will give it to another worker within seconds",
    )
    clock.advance(3600)
    found = await explain(engine, "a")
    assert found.codes == (Code.NO_LEASE, Code.NO_LEADER)
    assert told(found, "no_lease")[1] == ("no worker is there to rescue it; start one")
    assert told(found, "no_leader")[0] == (
        "there is no leader: no jobs are rescued, and scheduled jobs are not made ready"
    )


async def watched(engine: Engine, clock: FakeClock, *beats: str, watch: float = 4.0) -> Explanation:
    """Explain while time passes, and some workers beat."""
    asked = asyncio.create_task(explain(engine, "a", watch))
    while not asked.done():
        # What ends first: the explanation, or a sleep that only a leap of time can end.
        sleeps = asyncio.create_task(clock.asleep())
        await asyncio.wait({asked, sleeps}, return_when=asyncio.FIRST_COMPLETED)
        sleeps.cancel()
        for worker in beats:
            await engine.beat(worker)
        clock.advance(0.5)
    return await asked


async def test_a_worker_that_is_silent_while_it_is_watched(engine, clock):
    await staffed(engine)
    await put(engine)
    await taken(engine)
    found = await watched(engine, clock)
    assert found.codes == (Code.SILENT, Code.RUNNING)
    text, step = told(found, "silent")
    assert text.startswith("no heartbeat from w for ")
    assert step == "no live worker is the leader, so their jobs are not rescued; start a worker"


async def test_a_silent_worker_while_another_one_leads(engine, clock):
    await staffed(engine, "leader", queues=("other",))
    await staffed(engine)
    await put(engine)
    await taken(engine)
    _, step = told(await watched(engine, clock, "leader"), "silent")
    assert step == "after a lease (15s) the leader gives their jobs to other workers"


async def test_a_worker_that_beats_while_it_is_watched(engine, clock):
    await staffed(engine)
    await put(engine)
    await taken(engine)
    found = await watched(engine, clock, "w")
    assert found.codes == (Code.RUNNING,)


async def test_all_that_could_run_it_are_silent_and_nobody_leads(engine, clock):
    await staffed(engine)
    await put(engine)
    clock.advance(7200)
    found = await explain(engine, "a")
    assert found.codes == (Code.NO_LEADER,)
    assert told(found, "no_leader") == (
        "there is no leader: 1 worker has a lease and may be dead",
        "start a worker (without --no-leads); penstock doctor checks which of the others are alive",
    )
    found = await watched(engine, clock)
    assert found.codes == (Code.SILENT, Code.NO_LEADER)
    assert told(found, "silent")[1] == (
        "no live worker is the leader, so their jobs are not rescued; start a worker"
    )
    found = await watched(engine, clock, "w")
    assert found.codes == (Code.OVERLOOKED,)


# --- what else is good to know ------------------------------------------------------------------


async def test_a_job_that_expires(engine):
    await staffed(engine)
    await put(engine, expires_in=600)
    text, _ = told(await explain(engine, "a"), "expires")
    assert text == "it expires in 10m if it has not started by then"
    await put(engine, "b", expires_in=600, delay=601)
    text, _ = told(await explain(engine, "b"), "expires")
    assert text == "it expires in 10m, before it is due: it will not run"


async def test_a_job_that_runs_at_most_once(engine):
    await staffed(engine)
    await put(engine, at_most_once=True)
    found = await explain(engine, "a")
    assert found.codes == (Code.NEXT, Code.AT_MOST_ONCE)
    assert told(found, "at_most_once")[0] == (
        "it runs at most once: if its worker dies while running it, it fails and is not retried"
    )


async def test_a_job_that_was_in_a_crash_runs_alone(engine):
    await staffed(engine)
    await put(engine)
    await taken(engine)
    await bury(engine, "w")
    await staffed(engine, "v")
    found = await explain(engine, "a")
    assert found.codes == (Code.NEXT, Code.CRASHED)
    assert told(found, "next")[0] == "it is about to run, on its own"
    assert told(found, "crashed") == (
        "it was in 1 crash: it now runs on its own in a child process, and fails after 3",
        "for details: penstock jobs show a",
    )
    await claim_one(engine, "mail", worker="v")
    text, _ = told(await explain(engine, "a"), "claimed")
    assert text.endswith("starts it when a slot is free: after a crash, a job runs on its own")


# --- the app ------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_an_app_explains_its_jobs(app):
    job = app.enqueue("send")
    found = app.explain(job.id)
    assert (found.id, found.state, found.codes) == (job.id, "ready", (Code.NO_WORKER,))


@pytest.mark.every_engine
async def test_an_app_explains_awaited(app):
    job = await app.aenqueue("send", queue="mail")
    app_says = await app.aexplain(job.id, watch="1s")
    assert app_says.reasons[0].next_step == START


@pytest.mark.every_engine
def test_a_real_worker_says_what_room_it_has(app):
    send = app.task(name="send")(lambda: None)
    with app.worker_thread(concurrency=3, threads=2):
        send.enqueue().result(timeout=60)
        (info,) = app.workers()
    assert info.rooms == {"async": 3, "sync": 2, "process": 4}
    assert (info.kinds, info.lease) == ({"send": "sync"}, 15.0)


def test_every_code_is_in_the_guide():
    guide = Path(__file__).parents[2] / "docs/how-to/find-out-why.md"
    described = set(re.findall(r"`(\w+)`", guide.read_text()))
    assert set(Code) <= described


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (0.0421, "42ms"), (2.54, "2.5s"), (59.6, "1m"), (3700, "1h2m"), (90_000, "1d1h")],
)
def test_durations_have_no_more_detail_than_a_person_wants(seconds, words):
    assert span(seconds) == words


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell to copy to")
@pytest.mark.parametrize(
    "name",
    ["mail", "my mail; date", "$(date)", "it's", "\x1b[2J", "a\\b'\n\u202e", "日本 語", "-x", "~"],
)
def test_a_shell_takes_a_copied_name_for_just_that(name):
    script = f'show() {{ shift; printf %s "$1"; }}; show -- {argument(name).removeprefix("-- ")}'
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(["bash", "-c", script], capture_output=True, env=env, check=True)
    assert shown.stdout.decode() == name
    assert argument(name).isprintable()
    assert argument(name).startswith("-- ") == name.startswith("-")


async def test_next_steps_quote_what_a_shell_would_misread(engine):
    await engine.set_queue("my mail; date", QueueSettings(paused=True))
    found = await explain(engine, await put(engine, queue="my mail; date"))
    assert told(found, "paused")[1] == "to continue: penstock queues resume 'my mail; date'"
    start = "start a worker: penstock worker MODULE:APP --queues 'my mail; date'"
    assert told(found, "no_worker")[1] == start
    await put(engine, "-x")
    await changes.cancel(engine, ["-x"], "enough")
    step = told(await explain(engine, "-x"), "cancelled")[1]
    assert step == "to run it again: penstock jobs retry -- -x"


def test_what_was_probably_meant_is_the_same_name_elsewhere_or_one_spelt_alike():
    assert near("shop.send", ["mail.resize", "mail.Send"]) == "mail.Send"
    assert near("shop.send", ["shop.sent"]) == "shop.sent"
    assert near("shop.send", ["x"]) is None


async def test_the_slots_that_its_queue_has_in_a_worker_are_taken(engine):
    await staffed(engine, queue_slots={"mail": 1})
    await put(engine, "one")
    await taken(engine)
    await put(engine)
    assert told(await explain(engine, "a"), "busy") == (
        "the 1 worker that could run it runs 1 of 1 jobs of queue 'mail' that --queues allows",
        "it starts when one ends; start another worker, or raise the slots in --queues",
    )
