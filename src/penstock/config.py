"""Settings: defaults, then a file, then the environment, then arguments; the last one counts.

The file is ``penstock.toml`` in the working directory, or else the table ``[tool.penstock]`` of
``pyproject.toml`` there. In the environment a setting is ``PENSTOCK_`` and its name in capitals;
other variables with that prefix are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, TypedDict

from penstock.errors import BadOption

PREFIX: Final = "PENSTOCK_"
DAY: Final = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an app. Durations are seconds, sizes are bytes."""

    url: str = field(default="sqlite:///penstock.db", repr=False)
    """Where the jobs live."""
    max_payload: int = 1 << 20
    """Arguments of one job, as JSON."""
    max_result: int = 1 << 20
    """Result of one job, as JSON."""
    keep_finished: float = 7 * DAY
    """How long finished jobs and their results stay."""
    remember: float = 7 * DAY
    """How long an id that a caller gave cannot be used for another job."""
    enqueue_timeout: float = 30.0
    """How long an enqueue may wait for the store."""
    wait_for_store: float = 0.0
    """How long an enqueue is tried again while the store is away."""
    lease: float = 15.0
    """How long a worker that shows no sign of life keeps its jobs."""
    drain: float = 30.0
    """How long a worker that is told to stop lets its attempts go on."""
    concurrency: int = 100
    """Attempts of async tasks that one worker runs at once."""
    threads: int = 8
    """Attempts of sync tasks that one worker runs at once."""
    children: int = 4
    """Attempts of tasks with ``isolation="process"`` that one worker runs at once."""
    prefetch: int = 1000
    """Jobs beyond its free slots that one worker may hold, at most; long jobs mean none."""
    keyed_prefetch: int = 50
    """The same where the keys of a queue take turns: a job of another key waits for all of them."""
    patience: float = 1.0
    """How long a claimed job may wait for a slot before its worker gives it back."""
    poll: float = 1.0
    """How long an idle worker sleeps between two looks at the store, when nothing wakes it."""
    grace: float = 5.0
    """How long, after the drain, cancelled attempts may clean up and the store may be away."""
    stall_limit: float = 30.0
    """How long an attempt that must end may go on before its process counts as wedged."""
    leader_ttl: float = 10.0
    """How long a leader that shows no sign of life leads; at most two thirds of the lease."""
    upkeep_every: float = 60.0
    """How long the leader waits at most between two rounds of pruning and repairing."""
    upkeep_batch: int = 200
    """Jobs that one step of the upkeep promotes, prunes, purges or rescues at most."""
    enqueue_batch: int = 1000
    """Jobs that one commit of a call with many jobs stores at most."""
    crash_limit: int = 3
    """Crashes after which a job fails for good."""
    store_timeout: float = 10.0
    """How long one call to the store may take."""
    store_tries: int = 5
    """How often a call to the store is tried while it is away, where that is safe."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Labels of your own, beside high (0), normal (5) and low (10)."""


class SettingsGiven(TypedDict, total=False):
    """The settings as a caller writes them: durations may be text; None: not given."""

    max_payload: int | None
    max_result: int | None
    keep_finished: float | str | timedelta | None
    remember: float | str | timedelta | None
    enqueue_timeout: float | str | timedelta | None
    wait_for_store: float | str | timedelta | None
    lease: float | str | timedelta | None
    drain: float | str | timedelta | None
    concurrency: int | None
    threads: int | None
    children: int | None
    prefetch: int | None
    keyed_prefetch: int | None
    patience: float | str | timedelta | None
    poll: float | str | timedelta | None
    grace: float | str | timedelta | None
    stall_limit: float | str | timedelta | None
    leader_ttl: float | str | timedelta | None
    upkeep_every: float | str | timedelta | None
    upkeep_batch: int | None
    enqueue_batch: int | None
    crash_limit: int | None
    store_timeout: float | str | timedelta | None
    store_tries: int | None
    priorities: Mapping[str, int] | None


_COUNTS: Final = frozenset(setting.name for setting in fields(Settings) if setting.type == "int")
_DURATIONS: Final = frozenset(
    setting.name for setting in fields(Settings) if setting.type == "float"
)
_MAY_BE_ZERO: Final = frozenset(
    {"keep_finished", "drain", "wait_for_store", "prefetch", "keyed_prefetch", "patience", "grace"}
)


def load(
    given: Mapping[str, object],
    *,
    seconds: Callable[..., float],
    environ: Mapping[str, str] = os.environ,
    directory: str = "",
) -> Settings:
    """Return the settings; what is None in ``given`` was not given.

    ``seconds(value, name=...)`` reads durations: it comes from a layer above this one.
    """
    found: dict[str, Any] = {}
    for source, layer in (
        _file(directory),
        ("environment", _environment(environ)),
        ("", {name: value for name, value in given.items() if value is not None}),
    ):
        for name, value in layer.items():
            found[name] = _checked(source, name, value, seconds)
    return Settings(**found)


def _file(directory: str) -> tuple[str, Mapping[str, object]]:
    """The first file with settings: its path and its settings."""
    for name in ("penstock.toml", "pyproject.toml"):
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BadOption("config", path, f"cannot be read ({error.strerror})") from error
        if name == "penstock.toml" or b"penstock" in text:
            table = _table(path, text)
            return path, table if name == "penstock.toml" else _tool(table)
    return "", {}


def _table(path: str, text: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadOption("config", path, f"is no TOML: {error}; correct the file") from error


def _tool(table: Mapping[str, Any]) -> Mapping[str, object]:
    tool = table.get("tool")
    ours = tool.get("penstock") if isinstance(tool, dict) else None
    return ours if isinstance(ours, dict) else {}


def _environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Settings in the environment. Empty means not given, as a shell leaves it."""
    names = {PREFIX + setting.name.upper(): setting.name for setting in fields(Settings)}
    return {names[name]: environ[name] for name in names if environ.get(name)}


def _checked(source: str, name: str, value: object, seconds: Callable[..., float]) -> object:
    """The value as the setting stores it; errors name it as its source does."""
    called = {"": name, "environment": PREFIX + name.upper()}.get(source, f"{source}: {name}")
    if name == "url":
        return value
    if name in _COUNTS:
        return _count(called, value, least=0 if name in _MAY_BE_ZERO else 1)
    if name in _DURATIONS:
        duration = seconds(value, name=called)
        if duration == 0 and name not in _MAY_BE_ZERO:
            raise BadOption(called, value, "give a duration above 0")
        return duration
    if name == "priorities":
        return _labels(called, value)
    known = ", ".join(setting.name for setting in fields(Settings))
    raise BadOption(called, value, f"no such setting; there are {known}")


def _count(called: str, value: object, least: int) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadOption(called, value, f"give a whole number from {least}")
    return value


def _labels(called: str, value: object) -> dict[str, int]:
    """Labels from a table, or from text such as ``urgent=-5,bulk=20``."""
    labels: dict[str, int] = {}
    for label, number in _pairs(value):
        if not label or not isinstance(label, str) or not _is_priority(number):
            why = "give labels and whole numbers from -1000 to 1000, such as urgent=-5,bulk=20"
            raise BadOption(called, value, why)
        labels[label] = int(number)
    return labels


def _pairs(value: object) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, str):
        return [("", value)]
    parts = [part.partition("=") for part in value.split(",") if part.strip()]
    return [(label.strip(), number.strip()) for label, _, number in parts]


def _is_priority(number: object) -> bool:
    if isinstance(number, str):
        return number.removeprefix("-").isdecimal() and -1000 <= int(number) <= 1000
    return type(number) is int and -1000 <= number <= 1000
