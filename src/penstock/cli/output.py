"""What a command prints on stdout: JSON for programs, tables for people.

A table fits the terminal that it is printed on. Anywhere else it is plain: every text in full, one
row a line, no colour. What comes from a store is printed without its control characters, lest a
job's name move the cursor.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from shutil import get_terminal_size
from textwrap import wrap
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
import typer

from penstock.core.job import State

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The parameter of every command that prints data."""

# Besides control characters, those that turn the direction of writing, and halves of characters.
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_IN_BLOCKS: Final = re.compile(_UNSEEN.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))
_GAP: Final = "  "
_COMMAND: Final = re.compile(r"\bpenstock [a-z][^;,()]*")
_LEAST: Final = 14
LEAST_WRAPPED: Final = 20
"""Columns that a wrapped line may take, however narrow the terminal is."""

STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        State.RUNNING: "cyan",
        State.SUCCEEDED: "green",
        State.FAILED: "red",
        State.CANCELLED: "magenta",
    }
)
"""Colours of the states, as styles of rich."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    On a terminal that is too narrow, texts of columns that may ``shrink`` are cut; if that would
    leave too little of them, ``optional`` columns are left out, the last one first, and those where
    there is nothing. A text that is in ``styles`` has that colour.
    """

    title: str
    align: Literal["left", "right"] = "left"
    shrink: bool = False
    optional: bool = False
    styles: Mapping[str, str] = field(default_factory=dict)


# --- JSON ---------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print one document, in the order of its keys."""
    write(_encoded(value, indent=2) + "\n")


def print_json_line(value: object) -> None:
    """Print one of a stream of documents, on one line."""
    write(_encoded(value, indent=0) + "\n")


def _encoded(value: object, indent: int) -> str:
    text = msgspec.json.encode(value)
    shown = (msgspec.json.format(text, indent=indent) if indent else text).decode()
    try:
        shown.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), indent=indent or None)
    return shown


# --- for people ---------------------------------------------------------------------------------


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their titles."""
    PrintedTable(columns).print(rows)


class PrintedTable:
    """A table that is printed piece by piece: its titles once, its columns never narrower."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._widths = [0] * len(columns)
        self._shown: list[int] | None = None
        self._is_titled = False

    def print(self, rows: Iterable[Sequence[str]]) -> None:
        """Print some more rows."""
        lines = [[visible(cell) for cell in row] for row in rows]
        titles = [] if self._is_titled else [[column.title for column in self._columns]]
        for line in titles + lines:
            self._widths = [
                max(*pair) for pair in zip(self._widths, map(_width, line), strict=True)
            ]
        if sys.stdout.isatty():
            self._print_fitted(lines)
        else:
            write("".join(f"{self._line(line)}\n" for line in titles + lines))
        self._is_titled = True

    def _line(self, cells: Sequence[str]) -> str:
        padded = []
        for column, width, cell in zip(self._columns, self._widths, cells, strict=True):
            space = " " * (width - _width(cell))
            padded.append(cell + space if column.align == "left" else space + cell)
        return _GAP.join(padded).rstrip()

    def _print_fitted(self, rows: Sequence[Sequence[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console()
        if self._shown is None:
            self._shown = self._fitting(rows, console.width)
        grid = Table(box=None, pad_edge=False, header_style="bold", show_header=not self._is_titled)
        grid.padding = (0, len(_GAP), 0, 0)
        for index in self._shown:
            column = self._columns[index]
            least = None if column.shrink else self._widths[index]
            grid.add_column(
                column.title, justify=column.align, no_wrap=not column.shrink, min_width=least
            )
        for row in rows:
            # A text that must not wrap in a column that may is cut with an ellipsis.
            texts = [
                Text(row[index], self._columns[index].styles.get(row[index], ""), no_wrap=True)
                for index in self._shown
            ]
            for text in texts:
                text.overflow = "ellipsis" if console.encoding.startswith("utf") else "crop"
            grid.add_row(*texts)
        console.print(grid)

    def _fitting(self, rows: Sequence[Sequence[str]], width: int) -> list[int]:
        """The columns for which there is room, decided by the first rows."""
        shown = [
            index
            for index, column in enumerate(self._columns)
            if not column.optional or any(row[index] for row in rows)
        ]
        optional = [index for index in shown if self._columns[index].optional]
        while optional and sum(map(self._least, shown)) + len(_GAP) * (len(shown) - 1) > width:
            shown.remove(optional.pop())
        return shown

    def _least(self, index: int) -> int:
        """The narrowest width in which a column is still of use."""
        width = self._widths[index]
        return min(width, _LEAST) if self._columns[index].shrink else width


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def print_facts(facts: Iterable[tuple[str, str | None]]) -> None:
    """Print names and values, one a line; what is None is left out."""
    known = [(name, visible(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        print_line(f"{name.ljust(width)}{_GAP}{value}".rstrip())


def print_line(text: str = "") -> None:
    """Print one line."""
    write(f"{visible(text)}\n")


def print_wrapped(text: str, indent: int) -> None:
    """Print one line; on a terminal that is narrower, several, broken between words and indented
    after the first. A word that is too long stays whole, and so does a command, to be copied.
    """
    text = visible(text)
    if not sys.stdout.isatty():
        write(f"{text}\n")
        return
    lines = wrap(
        _COMMAND.sub(lambda found: found[0].replace(" ", "\0"), text),
        max(get_terminal_size().columns, LEAST_WRAPPED),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    write("\n".join(lines).replace("\0", " ") + "\n")


def print_block(text: str, indent: int = 0) -> None:
    """Print several lines as they are, such as a traceback."""
    for line in visible_lines(text):
        write(f"{' ' * indent}{line}".rstrip() + "\n")


def print_title(text: str) -> None:
    """Print the title of what follows, after an empty line."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console().print("", Text(visible(text), "bold"), sep="\n")
    else:
        write(f"\n{visible(text)}\n")


def visible(text: str) -> str:
    """The text on one line, with what cannot be seen written as an escape."""
    return _UNSEEN.sub(_escaped, text)


def visible_lines(text: str) -> list[str]:
    """The same for a text of several lines, which may have tabs."""
    return [_UNSEEN_IN_BLOCKS.sub(_escaped, line) for line in text.splitlines()]


def _escaped(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


def write(text: str) -> None:
    """Print text as it is."""
    sys.stdout.write(text)
