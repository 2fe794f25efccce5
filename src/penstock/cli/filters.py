"""The options that choose jobs, alike for every command that takes them."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, cast, get_type_hints

import typer

from penstock.cli import completion
from penstock.clock import SystemClock
from penstock.core.units import seconds
from penstock.errors import BadDuration, BadOption, UsageError
from penstock.operations import Which

Texts = list[str] | None

_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "state": Annotated[
            Texts,
            typer.Option(
                metavar="STATE",
                help="scheduled, ready, running, succeeded, failed or cancelled.",
                autocompletion=completion.states,
            ),
        ],
        "queue": Annotated[
            Texts,
            typer.Option(
                metavar="QUEUE", help="Only jobs of this queue.", autocompletion=completion.queues
            ),
        ],
        "task": Annotated[
            Texts,
            typer.Option(
                metavar="TASK", help="Only jobs of this task.", autocompletion=completion.tasks
            ),
        ],
        "key": Annotated[Texts, typer.Option(metavar="KEY", help="Only jobs with this key.")],
        "hold": Annotated[
            Texts,
            typer.Option(
                metavar="HOLD",
                help="Only jobs held for this reason.",
                autocompletion=completion.holds,
            ),
        ],
        "tag": Annotated[str | None, typer.Option(metavar="TAG", help="Only jobs with this tag.")],
        "correlation_id": Annotated[
            str | None, typer.Option(metavar="ID", help="Only jobs with this correlation id.")
        ],
        "since": Annotated[
            str | None,
            typer.Option(
                metavar="WHEN", help="Only jobs enqueued since then: 2h (ago), or a date."
            ),
        ],
        "until": Annotated[
            str | None, typer.Option(metavar="WHEN", help="Only jobs enqueued before then.")
        ],
    }
)

HELP: Final = """\
Filters: --state, --queue, --task, --key and --hold may be repeated; a job matches if it has any of
the repeated values and satisfies all of the filters. WHEN is how long ago, such as 90s, 2h or 3d,
or a date and time, such as 2026-11-16T03:20, in UTC unless it has a time zone.
"""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose jobs; it gets what was chosen as ``which``."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name])
        for each in inspect.signature(command).parameters.values()
        if each.name != "which"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in _OPTIONS}
        command(which=_which(chosen), **given)

    parameters = own + added
    vars(called)["__signature__"] = inspect.Signature(parameters)
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def as_options(which: Which) -> str:
    """The options that choose these jobs, as a person would write them."""
    words: list[str] = []
    for name, value in which.items():
        option = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list) else [value]:
            words += [option, _iso(each) if isinstance(each, float) else str(each)]
    return shlex.join(words)


def _which(given: Mapping[str, Any]) -> Which:
    # An empty text is not left out: it came from an empty variable, and was meant to choose.
    chosen: dict[str, Any] = {
        name: value for name, value in given.items() if value is not None and value != []
    }
    for name in ("since", "until"):
        if name in chosen:
            chosen[name] = _instant(f"--{name}", chosen[name])
    if "since" in chosen and "until" in chosen and chosen["since"] >= chosen["until"]:
        since, until = (f"--{name} {given[name]}" for name in ("since", "until"))
        raise UsageError(f"no job can match {since} {until}: --since must be before --until")
    return cast(Which, chosen)


def _instant(option: str, text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is not None:
        instant = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        return max(0.0, instant)  # there are no jobs from before 1970
    try:
        return max(0.0, SystemClock().now() - seconds(text, name=option))
    except BadDuration:
        why = "give how long ago, such as 2h, or a date and time, such as 2026-11-16T03:20"
        raise BadOption(option, text, why) from None


def _iso(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).isoformat()
