"""A failed attempt is in the log once, with its traceback; an outage once at each end."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Retry, logs
from penstock.core.job import State
from penstock.errors import EngineFull
from worker import victims
from worker.rig import Rig, soon, spec, specs


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def text(record: logging.LogRecord) -> list[str]:
    return logs.TextFormatter().format(record)[13:].splitlines()


def parsed(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(logs.JsonFormatter().format(record))
    return found


def refuse(code: int) -> None:
    raise PermissionError(f"door {code} is shut")


async def refuse_later(code: int) -> None:
    refuse(code)


@pytest.mark.parametrize("task", [refuse, refuse_later])
async def test_a_job_that_fails_is_one_error_with_its_traceback(rig: Rig, kept: Kept, task: Any):
    async with rig.working(specs(spec(task, retries=0))):
        (job,) = await rig.ended(await rig.put(task.__name__, b'{"code":7}'))

    (record,) = kept.records
    line, *trace = text(record)
    name = task.__name__
    assert line == (
        f"ERROR job failed job={job.id} task={name} attempt=1 "
        'reason="PermissionError: door 7 is shut"'
    )
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "PermissionError: door 7 is shut"
    assert not any("penstock/worker" in each for each in trace)
    found = parsed(record)
    assert (found["event"], found["reason"]) == ("job failed", "PermissionError: door 7 is shut")
    assert found["traceback"] == (job.errors[0].traceback or "").rstrip()
    assert "\n" not in found["message"]


async def test_the_record_has_the_exception_itself_for_handlers_such_as_sentrys(rig, kept):
    async with rig.working(specs(spec(refuse, retries=0))):
        await rig.ended(await rig.put("refuse", b'{"code":7}'))

    (record,) = kept.records
    kind, error, trace = record.exc_info
    assert (kind, str(error)) == (PermissionError, "door 7 is shut")
    assert trace is error.__traceback__


async def test_each_failed_attempt_is_said_once(rig, kept):
    async with rig.working(specs(spec(refuse, retries=[1, 1]))):
        id = await rig.put("refuse", b'{"code":7}')
        (job,) = await rig.meanwhile(rig.ended(id))

    assert job.state is State.FAILED
    said = [(record.event, record.fields["attempt"]) for record in kept.records]
    assert said == [("attempt failed", 1), ("attempt failed", 2), ("job failed", 3)]
    assert all("PermissionError" in (record.exc_text or "") for record in kept.records)


async def test_an_attempt_in_a_child_process_has_its_traceback_as_text(rig, kept):
    task = victims.ISOLATED_FAILS.spec
    async with rig.working({task.name: task}):
        id = await rig.put(task.name)
        await rig.until(lambda: _is_scheduled(rig, id))

    (record,) = kept.records
    assert (record.event, record.exc_info) == ("attempt failed", None)
    assert text(record)[-1] == "ValueError: as always"
    assert parsed(record)["traceback"].endswith("ValueError: as always")


async def test_a_retry_that_the_handler_asked_for_has_no_traceback(rig, kept):
    def wait() -> None:
        raise Retry("1m", "busy")

    async with rig.working(specs(spec(wait, retries=5))):
        id = await rig.put("wait")
        await rig.until(lambda: _is_scheduled(rig, id))

    (record,) = kept.records
    (line,) = text(record)
    assert line.endswith("again_in=60.0 reason=busy")


async def _is_scheduled(rig: Rig, id: str) -> bool:
    return (await rig.job(id)).state is State.SCHEDULED


async def test_a_long_reason_is_cut_in_the_line_and_whole_in_the_traceback(rig, kept):
    def verbose() -> None:
        raise ValueError("first line\n" + "x" * 2000)

    async with rig.working(specs(spec(verbose, retries=0))):
        await rig.ended(await rig.put("verbose"))

    (record,) = kept.records
    line, *trace = text(record)
    assert line.endswith('reason="ValueError: first line ..."')
    assert trace[-1] == "x" * 2000


async def test_nothing_keeps_the_exception_once_its_attempt_is_logged(rig):
    class Big(Exception):
        pass

    seen: list[weakref.ref[Big]] = []

    async def fail() -> None:
        error = Big("much")
        seen.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    logging.getLogger("penstock.worker").propagate = False  # the test's own handler keeps records
    gc.disable()
    try:
        async with rig.working(specs(spec(fail, retries=0))):
            await rig.ended(await rig.put("fail"))
            await soon(rig.clock.settle())
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()
        logging.getLogger("penstock.worker").propagate = True


# --- outages ------------------------------------------------------------------------------------


async def test_a_full_disk_is_said_once_although_beats_and_reads_succeed(rig, kept):
    logging.getLogger("penstock.worker").setLevel(logging.INFO)
    kept.setLevel(logging.INFO)
    try:
        async with rig.working(specs(spec(refuse, retries=0))):
            kept.records.clear()
            rig.main.fail("exchange", EngineFull("memory", "no space left"), times=20)
            id = await rig.put("refuse", b'{"code":7}')
            await rig.meanwhile(rig.ended(id))
    finally:
        logging.getLogger("penstock.worker").setLevel(logging.NOTSET)

    outage = [record for record in kept.records if record.event.startswith("store ")]
    assert [(each.event, each.levelname) for each in outage] == [
        ("store unavailable", "WARNING"),
        ("store available again", "INFO"),
    ]
    assert outage[0].fields["error"] == "EngineFull"


async def test_a_worker_without_tasks_says_so_and_what_to_do(rig, kept):
    async with rig.working({}):
        pass

    (record,) = kept.records
    (line,) = text(record)
    assert line.startswith("WARNING no tasks worker=")
    assert 'Penstock(imports=[\\"mail.tasks\\"])' in line
    assert "penstock worker --import mail.tasks" in line


async def test_json_has_a_fixed_event_and_what_varies_in_fields(rig, kept):
    async with rig.working(specs(spec(refuse, retries=0))):
        for code in (1, 2):
            await rig.ended(await rig.put("refuse", b'{"code":%d}' % code))

    found = [parsed(record) for record in kept.records]
    assert {each["event"] for each in found} == {"job failed"}
    assert {each["reason"] for each in found} == {
        "PermissionError: door 1 is shut",
        "PermissionError: door 2 is shut",
    }
    assert all("error" not in each for each in found), "the reason says it"
