"""A page of text over the panels: the keys, an explanation, a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli.output import visible


@dataclass(frozen=True, slots=True)
class Overlay:
    """A page of text over the panels."""

    title: str
    lines: Sequence[str]
    keys: str
    """What may be pressed."""

    def drawn(self, width: int, height: int) -> RenderableType:
        """The text, wrapped between words, in as many lines as there are."""
        body = [Text(self.title, "bold"), Text("")]
        for line in self.lines:
            indent = " " * (len(line) - len(line.lstrip()))
            wrapped = wrap(
                visible(line), width, subsequent_indent=f"{indent}  ", break_on_hyphens=False
            )
            body += [Text(part) for part in wrapped or [""]]
        body = body[: max(1, height - 2)]
        body += [Text("")] * (height - 1 - len(body))
        return Group(*body, Text(self.keys, "dim", no_wrap=True, overflow="ellipsis"))


HELP: Final = Overlay(
    "Keys",
    (
        "up, down     select a job that is running or has failed",
        "e            explain the selected job: why it is where it is, and what to do",
        "c            cancel the selected job, after a question",
        "tab, arrows  left and right choose what is listed: all, queues, running jobs, workers or "
        "failed jobs",
        "p, space     pause the screen, and continue",
        "?            show this page",
        "q, escape    quit, or leave a page",
    ),
    "press a key to go back",
)
