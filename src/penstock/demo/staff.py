"""The demo's worker processes: the supervisor of ``penstock worker``, inside the demo's process.

So its processes end by themselves if the demo is killed. What they print goes to a log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Final, TextIO

from penstock import logs
from penstock.clock import Clock
from penstock.stores import connect
from penstock.worker.staff.frames import Orders
from penstock.worker.staff.member import spawn
from penstock.worker.staff.supervisor import StaffSettings, Supervisor

APP: Final = "penstock.demo.shop:app"
PROCESSES: Final = 2
OPTIONS: Final = {
    "concurrency": 5,
    "threads": 3,
    "children": 2,
    "drain": 0.0,
    "grace": 2.0,
    "lease": 10.0,
    "name": "demo",
}


class Staff(Supervisor):
    """A supervisor that tells its owner when a person wants to stop."""

    def __init__(self, log: TextIO, clock: Clock, told: Callable[[str], None]) -> None:
        logs.configure("text", "info", log)
        logging.raiseExceptions = False  # a log on a full disk must not be told of on the screen
        super().__init__(
            partial(connect, clock=clock),
            Orders(app=APP, options=OPTIONS),
            StaffSettings(processes=PROCESSES, hang_limit=20.0),
            clock=clock,
            environ={name: value for name, value in os.environ.items() if "NOTIFY" not in name},
            start=partial(spawn, output=log.fileno()),
        )
        self._told = told

    def stop(self, why: str) -> None:
        self._told(why)
        super().stop(why)

    def finish(self) -> None:
        """The demo itself wants to stop."""
        super().stop("the demo is over")
