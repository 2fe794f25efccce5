"""Next steps ready to be copied: with the ``--app`` and ``--url`` that this command was given."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock.core.finding import Finding
from penstock.explain import Reason

Advice = TypeVar("Advice", Finding, Reason)

_COMMAND: Final = re.compile(
    r"\bpenstock (?:(?:jobs|queues|workers|tasks) [a-z-]+|explain|doctor|top|migrate)\b"
)


def copyable(advice: Advice, given: str) -> Advice:
    """The same, with the options ``given`` in its commands, so that they find the same store."""
    if advice.next_step is None or not given:
        return advice
    step = _COMMAND.sub(lambda found: f"{found[0]} {given}", advice.next_step)
    return replace(advice, next_step=step)
