"""What the worker expects of a place where attempts run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.worker.attempt import Attempt


class Pool(Protocol):
    """Attempts wait here in line and run when there is room and the gate admits them."""

    size: int
    """Attempts that may run at once."""

    @property
    def load(self) -> int:
        """Attempts that wait or run here."""

    @property
    def is_quiet(self) -> bool:
        """Nothing runs here."""

    @property
    def waiting(self) -> list[Attempt]:
        """Those that have not started, the next one first."""

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Let attempts run as soon as there is room."""

    def put_first(self, attempt: Attempt) -> None:
        """Let an attempt run before all that wait."""

    def pump(self) -> None:
        """Look again: the gate may have opened."""

    def withdraw(self, attempt: Attempt) -> bool:
        """Take out an attempt that waits; False: it has started."""

    def discard(self, attempt: Attempt) -> None:
        """Forget an attempt that waits here and that somebody else has seized."""

    def interrupt(self, attempt: Attempt) -> None:
        """Stop a running attempt, as far as that is possible; ``attempt.ending`` says why."""

    def insist(self, attempt: Attempt) -> None:
        """Stop it by all means there are: it was interrupted a while ago, and still runs."""

    def close(self) -> None:
        """Start nothing more; what still runs is nobody's business."""
