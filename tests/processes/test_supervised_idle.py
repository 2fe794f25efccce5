"""What a supervised worker costs when there is nothing to do."""

from __future__ import annotations

import os
import time

from processes.conftest import Shop

WATCHED = 15.0
"""Seconds over which the processor time is counted."""


def spent(pids: list[int]) -> float:
    """Seconds of processor time that these processes have used."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            # The name, in brackets, may have spaces; times are the 14th and 15th field.
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_an_idle_worker_uses_less_than_a_hundredth_of_a_processor(shop: Shop) -> None:
    worker = shop.supervisor()
    shop.until(lambda: "penstock worker ready" in worker.text(), "the worker")
    shop.until_ended(shop.enqueue("quick", 10))
    pids = [worker.pid, *worker.children()]
    assert len(pids) == 2
    began_at, before = time.monotonic(), spent(pids)
    shop.until(lambda: time.monotonic() - began_at >= WATCHED, "the end of the count")
    share = (spent(pids) - before) / (time.monotonic() - began_at)
    assert share < 0.01, f"{share:.2%} of a processor"
