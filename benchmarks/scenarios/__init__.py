"""What is measured: one scenario per file, in the order they are run."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from benchmarks.scenario import Scenario

NAMES: Final = (
    "enqueue_single",
    "enqueue_threads",
    "enqueue_async",
    "enqueue_many",
    "enqueue_options",
    "drain_async",
    "drain_two",
    "drain_threads",
    "drain_failing",
    "drain_queues",
    "drain_fair",
    "drain_limited",
    "fair_wait",
    "latency",
    "latency_busy",
    "delayed",
    "backlog",
    "history",
    "steady",
    "flow",
    "pinned",
    "cost",
    "import_time",
    "memory",
    "idle",
    "overhead",
)


def loaded(name: str) -> Scenario:
    """The scenario of this name."""
    module: Any = import_module(f"benchmarks.scenarios.{name}")
    scenario: Scenario = module.SCENARIO
    return scenario


def on(engine: str) -> tuple[str, ...]:
    """The scenarios that are made on an engine."""
    return tuple(name for name in NAMES if engine in loaded(name).engines)
