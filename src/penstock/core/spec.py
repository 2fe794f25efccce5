"""A task as the worker sees it: a function, how to call it, and what to do when it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.core.callbacks import Callbacks
from penstock.core.hooks import Hooks
from penstock.core.retry import Policy
from penstock.core.signature import Signature
from penstock.core.transactions import Need

Kind = Literal["async", "sync", "process"]
"""Where attempts of a task run: on the loop, on a thread, or in a child process."""

KINDS: Final[tuple[Kind, ...]] = ("async", "sync", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What was declared with ``@app.task``, complete and checked."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    signature: Signature
    policy: Policy
    retry_for: float | None = None
    """Seconds after the first failure within which a retry must begin."""
    timeout: float | None = None
    """Seconds after which an attempt is stopped."""
    stall: float | None = None
    """Seconds without a sign of life (progress, a log line, ``ctx.alive()``) after which it is."""
    at_most_once: bool = False
    isolation: Literal["process"] | None = None
    max_memory: int | None = None
    """Bytes that the child process of an attempt may have; more, and it is killed."""
    max_result: int = 1 << 20
    keep_result: bool = True
    """What it returns is stored."""
    redact: tuple[str, ...] = ()
    """Arguments that are secret, beside those whose names say so."""
    need: Need | None = None
    """What its attempts need of their transactions, if it is transactional."""
    owner: str | None = None
    """The module that includes its router in an app; None: it was declared by the app itself."""
    hooks: Hooks = field(default_factory=Hooks, compare=False)
    """What its app lets run around its attempts."""
    callbacks: Callbacks | None = field(default=None, compare=False)
    """What is enqueued when its jobs end, if anything is."""

    kind: Kind = field(init=False)
    """Where its attempts run."""
    is_watched: bool = field(init=False)
    """Time alone may end its attempts."""

    def __post_init__(self) -> None:
        """Decide once what every attempt asks."""
        kind = self.isolation or ("async" if self.is_async else "sync")
        object.__setattr__(self, "kind", kind)
        is_watched = self.timeout is not None or self.stall is not None
        object.__setattr__(self, "is_watched", is_watched)
