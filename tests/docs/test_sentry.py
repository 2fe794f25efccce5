"""The recipe for Sentry reports to Sentry's own SDK, whose transport belongs to the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from docs.pages import DOCS, blocks
from docs.reading import run

(SHOP,) = [each for each in blocks(DOCS / "how-to/sentry.md") if each.file_name == "shop.py"]

RECORDING: Final = '''
import functools, json, logging
import sentry_sdk
from sentry_sdk.transport import Transport

events = []


class Recorder(Transport):
    """Sends nothing: keeps what would be sent."""

    def capture_envelope(self, envelope):
        if (event := envelope.get_event()) is not None:
            events.append(event)


sentry_sdk.init = functools.partial(sentry_sdk.init, transport=Recorder())
'''
SAYING: Final = """
app.run_worker(until_empty=True)
print(json.dumps([
    {
        "errors": [
            f"{each['type']}: {each['value']}" for each in event["exception"]["values"]
        ] if "exception" in event else event.get("logentry"),
        "transaction": event.get("transaction"),
        "tags": event.get("tags", {}),
        "job": event["contexts"].get("job"),
        "breadcrumbs": [each.get("message") for each in event["breadcrumbs"]["values"]]
        if "breadcrumbs" in event else [],
    }
    for event in events
]))
"""


def reported(place: Path, program: str) -> list[dict[str, Any]]:
    """What reaches Sentry of the jobs that a program enqueues."""
    (place / "shop.py").write_text(SHOP.body)
    said = run(f"{RECORDING}\nfrom shop import app, charge\n{program}\n{SAYING}", place)
    found: list[dict[str, Any]] = msgspec.json.decode(said)
    return found


def test_an_error_is_reported_once_with_its_job(tmp_path: Path) -> None:
    (event,) = reported(tmp_path, 'charge.using(id="order-7", correlation_id="visit-1").enqueue(7)')
    assert event["errors"] == ["ValueError: order 7 has no price"]
    assert event["transaction"] == "shop.charge"
    assert event["tags"] == {"queue": "default", "correlation_id": "visit-1"}
    assert event["job"]["id"] == "order-7"
    assert (event["job"]["attempt"], event["job"]["failures"]) == (1, 0)


def test_what_a_handler_asks_for_is_not_reported(tmp_path: Path) -> None:
    program = """
from penstock import Cancel, Retry, Snooze


@app.task(retries=[0])
def end(how: str) -> None:
    raise {"cancel": Cancel("no"), "retry": Retry(0), "snooze": Snooze("1h")}[how]


for how in ("cancel", "retry", "snooze"):
    end.enqueue(how)
"""
    assert reported(tmp_path, program) == []


def test_a_timeout_is_not_reported_by_the_middleware(tmp_path: Path) -> None:
    program = """
import asyncio
import time


@app.task(retries=0, timeout=0.1)
async def wait() -> None:
    await asyncio.sleep(60)


@app.task(retries=0, timeout=0.1)
def spin() -> None:
    while True:
        time.sleep(0.01)


jobs = [wait.enqueue(), spin.enqueue()]
"""
    assert reported(tmp_path, program) == []


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_attempts_that_run_at_once_keep_their_breadcrumbs_apart(tmp_path: Path, kind: str) -> None:
    """Each waits until all have begun, so that they run at the same time."""
    wait = "await meeting.wait()" if kind == "async def" else "meeting.wait(30)"
    module = "asyncio" if kind == "async def" else "threading"
    program = f"""
import {module}

meeting = {module}.Barrier(3)


@app.task(retries=0)
{kind} part(number: int) -> None:
    {wait}
    logging.getLogger("shop").warning("part %s begins", number)
    {wait}
    raise ValueError(str(number))


part.enqueue_many([(number,) for number in range(3)])
"""
    found = reported(tmp_path, program)
    assert sorted((each["errors"], each["breadcrumbs"]) for each in found) == [
        ([f"ValueError: {number}"], [f"part {number} begins"]) for number in range(3)
    ]
