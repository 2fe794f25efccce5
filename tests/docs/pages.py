"""The documents as data: pages, and what a reader is asked to type on them.

    ```python                    a block that begins with "# shop.py" or "# shop/tasks.py" is a file
    # shop.py                    to save; any other is run
    ...

    ```console                   "$ " begins a command, "> " continues it; what follows is shown
    $ penstock jobs list         by it, with "..." for what differs from time to time
    ...

    ```console title="another terminal"      its last command goes on while the page does

A line "^C" is where the reader presses Ctrl-C: among what a command shows, or first in a block, for
what still runs in that terminal. ``<!-- exits 1 -->`` above a block says how its last command ends.
A block in ``sh`` is for the operating system alone: what it needs, such as root or a network, is
not there in a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
TUTORIAL: Final = DOCS / "tutorial.md"
PAGES: Final = tuple(sorted([README, ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]))
CAN_CLONE: Final = (ROOT / ".git").exists() and find_spec("ensurepip") is not None
"""Whether a fresh clone can be made here, with an environment of its own."""

INTERRUPT: Final = "^C"
ANOTHER_TERMINAL: Final = 'title="another terminal"'

_BLOCK: Final = re.compile(
    r"^(?:<!-- exits (?P<code>\d+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_FILE_NAME: Final = re.compile(
    r"# (?P<name>(?:(?:[\w-]+/)*[\w.-]+\.(?:py|toml|yaml|service)|Dockerfile))\n"
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    options: str
    body: str
    line: int
    code: int
    """What the last command of it exits with."""

    @property
    def file_name(self) -> str | None:
        """What a reader saves it as; None: it is no file."""
        named = _FILE_NAME.match(self.body)
        return named["name"] if named else None

    @property
    def module(self) -> str | None:
        """What a program imports it as; None: it is no Python."""
        name = self.file_name
        if not name or not name.endswith(".py"):
            return None
        return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@dataclass(frozen=True)
class Command:
    """What a reader types, and what the page says will be shown."""

    typed: str
    shown: tuple[str, ...]


def name_of(page: Path) -> str:
    """A page by its path in the repository."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The blocks of a page, of all or of some languages, in order."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        if not languages or found["language"] in languages:
            yield Block(
                language=found["language"],
                options=found["options"].strip(),
                body=dedent(found["body"]),
                line=text[: found.start()].count("\n") + 1,
                code=int(found["code"] or 0),
            )


def commands(block: Block) -> list[Command]:
    """The commands of a console block, each with what it shows."""
    typed: list[list[str]] = []
    shown: list[list[str]] = []
    for line in block.body.splitlines():
        if line.startswith("$ ") or (line == INTERRUPT and not typed):
            typed.append([line.removeprefix("$ ")])
            shown.append([])
        elif line.startswith("> ") and typed and not shown[-1]:
            typed[-1].append(line[2:])
        elif typed:
            shown[-1].append(line)
        else:
            raise ValueError(f"line {block.line}: a console block begins with '$ '")
    return [Command("\n".join(t), tuple(s)) for t, s in zip(typed, shown, strict=True)]
