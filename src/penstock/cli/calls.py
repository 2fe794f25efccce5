"""Calls as a person writes them in a shell, or a program on its output, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from penstock.errors import BadArguments, BadItem, BadOption, UsageError
from penstock.options import Call, EnqueueOptions

BATCH: Final = 1000

_HOW: Final = "give one JSON object, or NAME=TEXT and NAME:=JSON one by one"


@dataclass(frozen=True, slots=True)
class Line:
    """A call, and where it stands in the input."""

    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class Stored:
    """How far the input is stored: ``line`` is the last of them, ``under_way`` are not certain."""

    jobs: int = 0
    line: int = 0
    under_way: int = 0

    def told(self) -> str:
        """What a person has to know who wants to go on."""
        some = f"{self.under_way:,}"
        if not self.jobs:
            return f"Perhaps the first {some} are stored." if self.under_way else "None is stored."
        done = f"The {self.jobs:,} up to line {self.line} are stored"
        if self.under_way:
            return f"{done}, perhaps also the {some} after."
        return f"{done}; to go on, leave them out: tail -n +{self.line + 1}"


def arguments(task: str, words: Sequence[str]) -> dict[str, Any]:
    """The arguments that words on a command line mean."""
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
        return _object(task, words[0])
    found: dict[str, Any] = {}
    for each in words:
        said, mark, value = each.partition("=")
        name = said.removesuffix(":")
        if not mark or not name:
            raise BadArguments(task, f"{each!r} is no argument; {_HOW}")
        if name in found:
            raise BadArguments(task, f"{name!r} is given twice")
        found[name] = value if said == name else _json(task, said, value)
    return found


def options(given: Mapping[str, Any]) -> EnqueueOptions:
    """Options whose values are text, as the library takes them."""
    chosen = {name: value for name, value in given.items() if value is not None}
    priority = chosen.get("priority")
    if isinstance(priority, str) and priority.removeprefix("-").isdecimal():
        chosen["priority"] = int(priority)
    if isinstance(chosen.get("run_at"), str):
        chosen["run_at"] = _time(chosen["run_at"])
    return cast(EnqueueOptions, chosen)


def batches(
    lines: Iterable[str], task: str | None, given: Mapping[str, Any]
) -> Iterator[list[Line]]:
    """The calls that lines of JSON mean, some at a time; ``given`` holds where a line says nothing.

    With a ``task``, a line is its arguments; without, it names one. Empty lines mean nothing.
    """
    batch: list[Line] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        with named(number):
            batch.append(Line(number, _call(text, task, given)))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def named(number: int) -> Iterator[None]:
    """Let an error say which line is wrong."""
    try:
        yield
    except UsageError as error:
        why = error.error if isinstance(error, BadItem) else error
        raise UsageError(f"line {number} is wrong: {why}") from error


def _call(text: str, task: str | None, given: Mapping[str, Any]) -> Call:
    said = _object(task or "a line", text)
    if task is not None:
        return Call(task, said, options(given))
    named, args = said.pop("task", None), said.pop("args", None)
    if not isinstance(named, str):
        why = 'it names no task; write {"task": "shop.send", "args": {...}}'
        raise BadArguments("a line", why)
    if not isinstance(args, dict | None):
        raise BadArguments(named, f"args is no JSON object, but {args!r}")
    return Call(named, args, options({**given, **said}))


def _object(task: str, text: str) -> dict[str, Any]:
    found = _json(task, "", text)
    if not isinstance(found, dict):
        raise BadArguments(task, f"{text.strip()!r} is no JSON object; arguments go by their names")
    return found


def _json(task: str, name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = f"{name}={text}" if name else text.strip()
        raise BadArguments(task, f"{at!r} is no JSON: {error}; {_HOW}") from None


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        why = "give a date and time, such as 2026-11-16T03:20+00:00"
        raise BadOption("run_at", text, why) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
