"""What tests of programs that use Penstock are made of.

``Sandbox`` puts an app on a private store with a virtual clock; ``FakeClock`` and ``Faulty`` are
the clock and the store that break and move on request; ``interleavings`` runs a test under many
seeds. With pytest there are the fixtures ``penstock_sandbox`` and ``penstock_seed``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.testing.clock import FakeClock
    from penstock.testing.errors import (
        NobodyRuns,
        NotDue,
        NotReached,
        Runaway,
        SandboxBusy,
        SandboxClosed,
        SandboxForked,
        SandboxUsed,
        UnseenFailure,
        UnusedFault,
        WouldBlock,
    )
    from penstock.testing.faults import Crash
    from penstock.testing.faulty import Call, Faulty, Gate
    from penstock.testing.inspection import Entry
    from penstock.testing.plugin import MakeSandbox, interleavings
    from penstock.testing.runs import Drained, Failure, Run
    from penstock.testing.sandbox import Sandbox

__all__ = [
    # an app in a test
    "Sandbox",
    "Drained",
    "Run",
    "Failure",
    "Entry",
    "Crash",
    "interleavings",
    "MakeSandbox",
    # what they are made of
    "FakeClock",
    "Faulty",
    "Call",
    "Gate",
    # what can go wrong
    "NobodyRuns",
    "NotDue",
    "NotReached",
    "Runaway",
    "SandboxBusy",
    "SandboxClosed",
    "SandboxForked",
    "SandboxUsed",
    "UnseenFailure",
    "UnusedFault",
    "WouldBlock",
]

_HOMES: Final = {
    "clock": "FakeClock",
    "inspection": "Entry",
    "faults": "Crash",
    "faulty": "Call Faulty Gate",
    "plugin": "MakeSandbox interleavings",
    "runs": "Drained Failure Run",
    "sandbox": "Sandbox",
    "errors": "NobodyRuns NotDue NotReached Runaway SandboxBusy SandboxClosed "
    "SandboxForked SandboxUsed UnseenFailure UnusedFault WouldBlock",
}


def __getattr__(name: str) -> Any:
    # Found when first used: the pytest plugin below this package is loaded in every test run.
    for home, names in _HOMES.items():
        if name in names.split():
            found = globals()[name] = getattr(import_module(f"penstock.testing.{home}"), name)
            return found
    raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
