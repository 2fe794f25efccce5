"""A task as the worker sees it: a function, how to call it, and what to do when it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.payload import Signature
from penstock.core.retry import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What was declared with ``@app.task``, complete and checked."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    signature: Signature
    policy: Policy
    timeout: float | None = None
    at_most_once: bool = False
    max_result: int = 1 << 20
