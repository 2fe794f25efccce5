"""Next steps made ready to be copied: ``--url`` is added to the commands that need it."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock.app import Penstock
from penstock.core.finding import Finding
from penstock.explain import Reason
from penstock.explain.reasons import argument

Advice = TypeVar("Advice", Finding, Reason)

_COMMAND: Final = re.compile(r"\bpenstock (?:(?:jobs|queues) [a-z]+|explain|doctor|top|migrate)\b")


def copyable(advice: Advice, app: Penstock) -> Advice:
    """The same, with ``--url`` in its commands unless they find the app's store without it."""
    default = Penstock().url
    is_found = (default.scheme, default.location) == (app.url.scheme, app.url.location)
    if advice.next_step is None or is_found:
        return advice
    where = f" --url {argument(app.url.text)}"
    return replace(advice, next_step=_COMMAND.sub(lambda found: found[0] + where, advice.next_step))
