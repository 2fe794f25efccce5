"""What tests of Penstock, and of programs that use it, are made of.

``FakeClock`` moves only when the test says so; ``Faulty`` is a store that breaks on request.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.testing.clock import FakeClock
    from penstock.testing.faulty import Call, Faulty, Gate

__all__ = ["Call", "FakeClock", "Faulty", "Gate"]

_HOMES: Final = {
    "clock": "FakeClock",
    "faulty": "Call Faulty Gate",
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
