"""Calls of tasks as a command line or lines of JSON write them."""

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
"""Lines that are stored at once."""
_HOW: Final = "give one JSON object, or NAME=TEXT and NAME:=JSON one by one"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A call, and where it stands in the input."""

    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class StoredSoFar:
    """How far the input is stored: up to ``line``; perhaps also ``under_way`` more jobs."""

    jobs: int = 0
    line: int = 0
    under_way: int = 0

    def told(self) -> str:
        """How to go on from here, for a person."""
        some = f"{self.under_way:,}"
        if not self.jobs:
            return f"The first {some} may be stored." if self.under_way else "No jobs are stored."
        done = f"{self.jobs:,} jobs are stored, up to line {self.line}"
        if self.under_way:
            return f"{done}; the next {some} may be stored too."
        return f"{done}; to continue, skip them: tail -n +{self.line + 1}"


def arguments(task: str, words: Sequence[str]) -> dict[str, Any]:
    """The arguments that words on a command line mean."""
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
        return _object(task, words[0])
    found: dict[str, Any] = {}
    for each in words:
        said, mark, value = each.partition("=")
        name = said.removesuffix(":")
        if not mark or not name:
            raise BadArguments(task, f"{each!r} is not an argument; {_HOW}")
        if name in found:
            raise BadArguments(task, f"{name!r} is given twice")
        found[name] = value if said == name else _json(task, said, value)
    return found


def options_of(given: Mapping[str, Any]) -> EnqueueOptions:
    """Options whose values are text, as the library takes them."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if isinstance(chosen.get("priority"), str):
        chosen["priority"] = priority_of(chosen["priority"])
    if isinstance(chosen.get("run_at"), str):
        chosen["run_at"] = time_of(chosen["run_at"])
    return cast(EnqueueOptions, chosen)


def priority_of(text: str) -> str | int:
    """A number, or a label."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def batches(
    lines: Iterable[str], task: str | None, given: Mapping[str, Any]
) -> Iterator[list[InputLine]]:
    """The calls that lines of JSON mean, some at a time; ``given`` holds where a line says nothing.

    With a ``task``, a line is its arguments; without, it names one. Empty lines mean nothing.
    """
    batch: list[InputLine] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        with named(number):
            batch.append(InputLine(number, _call(text, task, given)))
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
        return Call(task, said, options_of(given))
    named, args = said.pop("task", None), said.pop("args", None)
    if not isinstance(named, str):
        why = 'it does not name a task; write {"task": "shop.send", "args": {...}}'
        raise BadArguments("a line", why)
    if not isinstance(args, dict | None):
        raise BadArguments(named, f"args must be a JSON object, not {args!r}")
    return Call(named, args, options_of({**given, **said}))


def _object(task: str, text: str) -> dict[str, Any]:
    found = _json(task, "", text)
    if not isinstance(found, dict):
        raise BadArguments(task, f"{text.strip()!r} is not a JSON object; name the arguments")
    return found


def _json(task: str, name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = f"{name}={text}" if name else text.strip()
        raise BadArguments(task, f"{at!r} is not valid JSON: {error}; {_HOW}") from None


def time_of(text: str) -> datetime:
    """A date and time, in UTC unless it has a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        why = "give a date and time, such as 2026-11-16T03:20+00:00"
        raise BadOption("run_at", text, why) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
