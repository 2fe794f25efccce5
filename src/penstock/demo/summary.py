"""What the demo says at its end: what became of everything, and what to try next."""

from __future__ import annotations

import os

from penstock.cli.output import Column, print_line, print_table
from penstock.cli.top.view import why_failed
from penstock.demo.book import Book, described
from penstock.demo.place import Place, command

KINDS = ("jobs", "succeeded", "retried", "crashed", "failed")


def print_summary(book: Book, place: Place, passed: float) -> None:
    """Print it."""
    jobs = sum(count for (_, kind), count in book.sums.items() if kind == "jobs")
    print_line(f"{jobs} jobs ended in {passed:.0f} seconds, on two worker processes.")
    if book.open:
        print_line(f"{len(book.open)} more wait: nothing is lost.")
    print_line()
    print_table(
        [Column("TASK"), *(Column(kind.upper(), "right") for kind in KINDS)],
        [(task, *(str(book.sums[task, kind]) for kind in KINDS)) for task in book.tasks],
    )
    if book.dead:
        print_line()
        print_line("Dead letters, which wait for a person:")
        for job in book.dead[-5:]:
            tries = f"{job.attempt} attempt{'s' if job.attempt > 1 else ''}"
            print_line(f"  {job.task} {described(job)}, {tries}: {why_failed(job)}")
    print_line()
    print_line(f"All of it stays in {place.folder}: {', '.join(sorted(_files(place)))}.")
    print_line()
    print_line("Try next:")
    for line in next_commands(book, place):
        print_line(f"  {line}")


def next_commands(book: Book, place: Place) -> tuple[str, str, str]:
    """Three commands that work as they are printed."""
    url = ("--url", place.url)
    if not book.dead:
        listed = command("jobs", "list", *url)
        return listed, command("queues", "list", *url), command("top", *url)
    # Rather one that a person could correct than one that takes a process down.
    dead = min(book.dead, key=lambda job: job.crashes).id
    return (
        command("jobs", "list", "--state", "failed", *url),
        command("explain", dead, *url),
        command("jobs", "retry", dead, *url),
    )


def _files(place: Place) -> list[str]:
    """What a person may want to look at."""
    wanted = ("jobs.db", "pictures", "workers.log")
    return [name for name in wanted if os.path.exists(place.folder / name)]
