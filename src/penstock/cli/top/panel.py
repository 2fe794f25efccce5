"""Panels: tables that share the lines of a screen, and the cells they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.output import visible
from penstock.cli.times import rough

LEAST: Final = 3
"""Lines below which a panel is not worth its room, unless it has less to show."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a panel. One that is wide takes what the others leave; one that is dispensable
    below a width of the screen is left out there.
    """

    title: str
    align: Literal["left", "right"] = "left"
    is_wide: bool = False
    needs: int = 0
    """The width of a screen that has room for it."""
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A table with a name, which is the title of its first column."""

    fields: tuple[Field, ...]
    rows: Sequence[Sequence[Text]]
    empty: str
    """What stands there if there are no rows."""
    counts_rest: bool = True
    """Its last line says how many rows are not shown."""
    selected: int | None = None
    """The row that is marked, and always shown."""

    @property
    def wanted(self) -> int:
        """Lines that would show all of it."""
        return 1 + max(1, len(self.rows))

    def table(self, width: int, lines: int) -> Table:
        """The table, in as many lines as it is given."""
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold"
        )
        shown = [index for index, field in enumerate(self.fields) if field.needs <= width]
        for field in (self.fields[index] for index in shown):
            table.add_column(
                field.title,
                justify=field.align,
                no_wrap=True,
                overflow="ellipsis",
                ratio=1 if field.is_wide else None,
                width=field.width,
            )
        marked = None if self.selected is None else self.rows[self.selected]
        for row in self._fitting(max(1, lines - 1)):
            cells = [row[index] if index < len(row) else Text("") for index in shown]
            table.add_row(*cells, style="reverse" if row is marked else None)
        return table

    def _fitting(self, lines: int) -> Sequence[Sequence[Text]]:
        if not self.rows:
            return [(Text(self.empty, "dim"),)]
        if len(self.rows) <= lines or lines == 1 or not self.counts_rest:
            first = self._first(lines)
            return self.rows[first : first + lines]
        first = self._first(lines - 1)
        rest = (Text(f"… {len(self.rows) - lines + 1} more", "dim"),)
        return [*self.rows[first : first + lines - 1], rest]

    def _first(self, lines: int) -> int:
        """The first of so many rows that are shown: the marked one is among them."""
        return 0 if self.selected is None else max(0, self.selected - lines + 1)


@dataclass(frozen=True, slots=True)
class Size:
    """The columns and lines of a screen."""

    width: int
    height: int


def page(
    top: Sequence[RenderableType], panels: Sequence[Panel], bottom: RenderableType, size: Size
) -> RenderableType:
    """A whole screen: lines at its top, panels one below the other, a line at its bottom.

    There is an empty line between any two of them. The last panels are left out when there is no
    room.
    """
    lines = size.height - len(top) - 3
    shown = list(panels)
    while len(shown) > 1 and sum(min(LEAST, panel.wanted) + 1 for panel in shown) - 1 > lines:
        shown.pop()
    given = shares(shown, lines - len(shown) + 1)
    parts: list[RenderableType] = [*top, ""]
    for panel, room in zip(shown, given, strict=True):
        parts += [panel.table(size.width, room), ""]
    parts += [""] * (lines - sum(given) - len(shown) + 1)
    return Group(*parts, bottom)


def shares(panels: Sequence[Panel], lines: int) -> list[int]:
    """Lines for each: a few at first, then one by one to those that want more."""
    given = [min(LEAST, panel.wanted) for panel in panels]
    while sum(given) < lines:
        wanting = [index for index, panel in enumerate(panels) if given[index] < panel.wanted]
        if not wanting:
            break
        for index in wanting[: lines - sum(given)]:
            given[index] += 1
    return given


def cell(text: str, style: str = "") -> Text:
    """A text from a store, which cannot move the cursor."""
    return Text(visible(text), style, no_wrap=True, overflow="ellipsis")


def number(value: int, style: str = "") -> Text:
    """How many; none is not worth looking at."""
    return Text(f"{value:,}", style) if value else Text("0", "dim")


def rate(value: float, style: str = "") -> Text:
    """How many per second."""
    if value <= 0:
        return Text("-", "dim")
    return Text(f"{value:,.0f}" if value >= 100 else f"{value:.1f}", style)


def bar(fraction: float, width: int, *, is_plain: bool, style: str = "cyan") -> Text:
    """How much of the whole, as a line."""
    full, half, empty = ("#", "", "-") if is_plain else ("━", "╸", "─")
    exact = min(1.0, max(0.0, fraction)) * width
    filled = int(exact)
    drawn = full * filled
    if half and exact - filled >= 0.5:
        drawn += half
    return Text(drawn, style) + Text(empty * (width - len(drawn)), "bright_black")


def age(seconds: float) -> Text:
    """How long, in four letters."""
    return Text(rough(seconds) if seconds >= 1 else "0s")
