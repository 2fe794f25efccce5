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
    from penstock.testing.faulty import CallGate, EngineCall, Faulty
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
    "EngineCall",
    "CallGate",
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

_MODULES: Final = {
    "clock": "FakeClock",
    "inspection": "Entry",
    "faults": "Crash",
    "faulty": "CallGate EngineCall Faulty",
    "plugin": "MakeSandbox interleavings",
    "runs": "Drained Failure Run",
    "sandbox": "Sandbox",
    "errors": "NobodyRuns NotDue NotReached Runaway SandboxBusy SandboxClosed "
    "SandboxForked SandboxUsed UnseenFailure UnusedFault WouldBlock",
}


def __getattr__(name: str) -> Any:
    # Found when first used: the pytest plugin below this package is loaded in every test run.
    for module, names in _MODULES.items():
        if name in names.split():
            found = globals()[name] = getattr(import_module(f"penstock.testing.{module}"), name)
            return found
    raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
