"""``python -m penstock.demo``: a little shop's background work, live, on an embedded SQLite file.

Mails on threads, pictures on the loop with progress, a payment service that fails now and then, one
order that cannot be delivered and ends in the dead letters, and a reminder that waits for its time.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.app import Penstock
from penstock.context import current
from penstock.core.job import Job, State
from penstock.core.retry import Fixed
from penstock.errors import EngineError
from penstock.handle import Handle

MAILS: Final = 40
PICTURES: Final = 4
PAYMENTS: Final = 10
WIDTH: Final = 24
REFRESH: Final = 0.2

Kinds = dict[str, list[Handle[object]]]


def shop(app: Penstock) -> Kinds:
    """Declare the shop's tasks and enqueue a day's work; nothing runs yet."""
    chance = random.Random(7)

    @app.task(name="mail.send", queue="mail")
    def send(to: str) -> str:
        threading.Event().wait(chance.uniform(0.05, 0.3))
        return f"sent to {to}"

    @app.task(name="picture.shrink", queue="pictures")
    async def shrink(name: str, sizes: int = 20) -> int:
        for done in range(sizes):
            current().progress(done / sizes, f"{done} of {sizes} sizes")
            await asyncio.sleep(chance.uniform(0.05, 0.2))
        return sizes

    @app.task(name="payment.collect", queue="payments", retries=Fixed("700ms", retries=6))
    async def collect(order: int) -> str:
        await asyncio.sleep(0.1)
        if chance.random() < 0.4 and current().failures < 4:
            raise ConnectionError("the payment service does not answer")
        return f"order {order} paid"

    @app.task(name="order.deliver", retries=[0.5, 0.5])
    async def deliver(order: int) -> None:
        raise ValueError(f"order {order} has no address")

    @app.task(name="customer.remind")
    async def remind(customer: str) -> str:
        return f"reminded {customer}"

    return {
        "mail.send": list(send.enqueue_many([(f"customer{n}@example.com",) for n in range(MAILS)])),
        "picture.shrink": list(shrink.enqueue_many([(f"photo{n}.jpg",) for n in range(PICTURES)])),
        "payment.collect": list(collect.enqueue_many([(n,) for n in range(PAYMENTS)])),
        "order.deliver": [deliver.enqueue(4711)],
        "customer.remind": [remind.using(delay="5s").enqueue("Ada")],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    # What fails here fails on purpose, and is shown in its own way.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(prog="python -m penstock.demo", description=__doc__)
    parser.add_argument("--keep", metavar="FILE", help="use this SQLite file and keep it")
    options = parser.parse_args(arguments)
    folder = None if options.keep else tempfile.mkdtemp(prefix="penstock-demo-")
    path = Path(options.keep) if options.keep else Path(str(folder), "jobs.db")
    try:
        _run(path)
    except KeyboardInterrupt:
        print("\nstopped; what was running has been given back")
        return 130
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run(path: Path) -> None:
    print(f"Penstock demo: one worker on {path}\n", flush=True)
    with Penstock(f"sqlite:///{quote(str(path))}") as app:
        work = shop(app)
        with app.worker_thread(threads=4) as worker:
            _watch(work, lambda: worker.is_alive)
        _sum_up(work)


def _watch(work: Kinds, goes_on: Callable[[], bool]) -> None:
    """Show how far each kind of work has come until all of it has ended, or its worker has."""
    screen = _Screen()
    pause = threading.Event()
    while goes_on():
        jobs = {kind: [handle.status() for handle in handles] for kind, handles in work.items()}
        screen.show([_line(kind, those) for kind, those in jobs.items()])
        if all(job.state.is_final for those in jobs.values() for job in those):
            return
        pause.wait(REFRESH)


def _line(kind: str, jobs: list[Job]) -> str:
    share = sum(1.0 if job.state.is_final else job.progress or 0.0 for job in jobs) / len(jobs)
    filled = round(share * WIDTH)
    full, empty = _letters()
    bar = full * filled + empty * (WIDTH - filled)
    ended = sum(job.state.is_final for job in jobs)
    notes = [
        f"{sum(job.state is state for job in jobs)} {state}"
        for state in (State.RUNNING, State.SCHEDULED, State.FAILED)
        if any(job.state is state for job in jobs)
    ]
    failures = sum(job.failures for job in jobs)
    if failures:
        notes.append(f"{failures} failed attempt{'s' if failures > 1 else ''}")
    return f"{kind:<16} {bar} {ended:>3}/{len(jobs):<3} {', '.join(notes)}"


def _letters() -> tuple[str, str]:
    """What is done and what is not, in letters that the terminal has."""
    try:
        "█░".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#", "."
    return "█", "░"


def _sum_up(work: Kinds) -> None:
    jobs = [handle.status() for handles in work.values() for handle in handles]
    succeeded = sum(job.state is State.SUCCEEDED for job in jobs)
    attempts = sum(job.attempt for job in jobs)
    print(f"\n{len(jobs)} jobs, {attempts} attempts: {succeeded} succeeded.")
    for job in jobs:
        if job.state is State.FAILED:
            tries = f"after {job.attempt} attempts" if job.attempt > 1 else "at once"
            print(f"In the dead letters: {job.task} {job.payload.decode()} {tries}:")
            print(f"  {job.reason}")
    print("\nNext: read README.md, or look at src/penstock/demo.py, which is all of this.")


class _Screen:
    """Lines that are drawn over on a terminal, and printed once in a while anywhere else."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._drawn = 0
        self._last: list[str] = []

    def show(self, lines: list[str]) -> None:
        if self._is_terminal:
            up = f"\x1b[{self._drawn}F" if self._drawn else ""
            room = shutil.get_terminal_size().columns - 1  # a line that wraps would be two
            sys.stdout.write(up + "".join(f"\x1b[2K{line[:room]}\n" for line in lines))
            self._drawn = len(lines)
        else:
            for line, before in zip(lines, self._last or [""] * len(lines), strict=True):
                if line != before:
                    print(line)
        self._last = lines
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
