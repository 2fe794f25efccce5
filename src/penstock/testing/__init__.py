"""What tests of Penstock, and of programs that use it, are made of.

``FakeClock`` moves only when the test says so; ``Faulty`` is a store that breaks on request.
"""

from penstock.testing.clock import FakeClock
from penstock.testing.faulty import Call, Faulty, Gate

__all__ = ["Call", "FakeClock", "Faulty", "Gate"]
