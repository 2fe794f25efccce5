"""What is wrong with a store, its workers and its queues, and what to do about it.

``app.doctor()`` first looks at the place where the jobs live without opening it, then reads the
store twice, a few seconds apart: what only time can show, such as a beat that stands still, shows
between the two. Nothing is changed unless it is told to repair.
"""

from penstock.core.finding import Finding, Level
from penstock.doctor.doctor import examine
from penstock.doctor.snapshot import Expected

__all__ = ["Expected", "Finding", "Level", "examine"]
