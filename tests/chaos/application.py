"""The application of a run: every kind of task, each noting which attempt it is.

``CHAOS_URL`` names the store, ``CHAOS_PLACE`` the folder of the notes, and ``CHAOS_TORN`` the way
in which the engine is broken, if it is (``chaos.torn``).
"""

from __future__ import annotations

import asyncio
import os
import time

import psycopg

from chaos.notes import note
from chaos.torn import tear
from penstock import INJECTED, Penstock, current
from penstock.events import AttemptEnded, Stale

URL = os.environ["CHAOS_URL"]
FAILURES = 2
"""How often an attempt of ``unlucky`` fails."""

app = Penstock(URL, enqueue_timeout=10.0)
if kind := os.environ.get("CHAOS_TORN"):
    tear(app, kind)


def begin() -> None:
    context = current()
    note("begun", context.id, context.job.claim)


@app.task
async def quick(work: float) -> None:
    begin()


@app.task
async def slow(work: float) -> None:
    begin()
    await asyncio.sleep(work)


@app.task
def threaded(work: float) -> None:
    begin()
    time.sleep(work / 4)


@app.task(isolation="process")
def isolated(work: float) -> None:
    begin()
    time.sleep(work / 4)


@app.task(retries=[0.1] * 10)
async def unlucky(work: float) -> None:
    begin()
    if current().failures < FAILURES:
        raise ValueError("this attempt is one of those that fail")


TASKS = [quick, slow, slow, threaded, isolated, unlucky]
EFFECT = "INSERT INTO effect VALUES (%s)"

if URL.startswith("postgresql"):

    @app.task(transactional=True)
    def pay(work: float, db: psycopg.Connection = INJECTED) -> None:
        begin()
        db.execute(EFFECT, (current().id,))
        time.sleep(work / 4)

    @app.task(transactional=True)
    async def pay_awaited(work: float, db: psycopg.AsyncConnection = INJECTED) -> None:
        begin()
        await db.execute(EFFECT, (current().id,))
        await asyncio.sleep(work)

    TASKS += [pay, pay_awaited]


@app.on(AttemptEnded)
def settled(event: AttemptEnded) -> None:
    note("settled", event.job, event.claim or 0, event.worker or "-", type(event).__name__)


@app.on(Stale)
def refused(event: Stale) -> None:
    note("refused", event.job, event.claim, event.worker)
