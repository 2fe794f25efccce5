"""A reader of a page: saves its files, runs its code, types its commands into a real terminal.

The terminal is a pseudo-terminal with a shell in it, and a screen on which escape sequences do what
they do on any other. What a page shows is compared with that screen line by line.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as cached
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pexpect  # type: ignore[import-untyped]
import pyte

from docs.pages import ANOTHER_TERMINAL, INTERRUPT, Block, Command, blocks, commands

PATIENCE: Final = 240.0
"""Seconds after which a command counts as hung."""

COLUMNS: Final = 110
ROWS: Final = 40
_PROMPT: Final = re.compile(r"@(\d+)@ready@")
_SET_UP: Final = re.compile(r"git clone|cd |make |python3 -m venv|\. \.?venv/|pip install")
"""What prepares a machine: done already where the tests run."""


class Terminal:
    """A shell in a terminal, in one directory."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self._shell: Any = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile", "--noediting"],
            cwd=str(place),
            env=dict(environment),
            dimensions=(ROWS, COLUMNS),
            encoding="utf-8",
            codec_errors="replace",
            timeout=PATIENCE,
        )
        self._shell.delaybeforesend = None
        self._is_busy = False
        self._shell.sendline("PS2= PS1='@$?''@ready@'; stty -echo")
        self._shell.expect(_PROMPT)

    def type(self, command: str) -> tuple[int, str]:
        """Run a command to its end: how it exits, and what was sent to the screen."""
        self._shell.sendline(command)
        return self._finish()

    def leave_running(self, command: Command) -> None:
        """Start a command and wait until it has shown what the page says.

        What still runs here is ended first, as a reader would.
        """
        self.rest()
        self._shell.sendline(command.typed)
        self._is_busy = True
        seen, patience = "", time.monotonic() + PATIENCE
        while not shows(command.shown, screen(seen), whole=False):
            if _PROMPT.search(seen) or time.monotonic() > patience:
                raise AssertionError(f"{command.typed} has ended, or hangs, and shows:\n{seen}")
            with contextlib.suppress(pexpect.TIMEOUT):
                seen += self._shell.read_nonblocking(4096, timeout=1)

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C and wait for the end of what runs."""
        self._shell.sendintr()
        return self._finish()

    def rest(self) -> None:
        """End what runs here, if anything does; it ends well."""
        if self._is_busy:
            code, raw = self.interrupt()
            assert code in (0, 130), raw

    def close(self) -> None:
        """End what runs here, then the shell."""
        try:
            self.rest()
            self._shell.sendline("exit 0")
            self._shell.expect(pexpect.EOF)
        finally:
            self._shell.close(force=True)

    def _finish(self) -> tuple[int, str]:
        try:
            self._shell.expect(_PROMPT)
        except (pexpect.TIMEOUT, pexpect.EOF):
            raise AssertionError(f"it hangs after this:\n{self._shell.before}") from None
        self._is_busy = False
        return int(self._shell.match[1]), str(self._shell.before)


def screen(raw: str) -> list[str]:
    """What a terminal that never scrolls shows after it was sent this, to its last line of text."""
    shown: Any = pyte.Screen(COLUMNS, ROWS + 4 * raw.count("\n"))
    pyte.Stream(shown).feed(raw)
    lines = [line.rstrip() for line in shown.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def shows(expected: Sequence[str], actual: Sequence[str], *, whole: bool = True) -> bool:
    """Whether the page is right: ``...`` stands for anything in a line, alone for any lines.

    How many blanks there are between two words is not compared: columns are as wide as what is in
    them.
    """
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        elif line.strip():
            parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split("...")]
            pattern += r" *" + r"[^\n]*?".join(parts) + r"[ \t]*\n"
    text = "".join(f"{line}\n" for line in actual if line.strip())
    found = re.fullmatch(pattern, text) if whole else re.search(pattern, text)
    return found is not None


def read(
    page: Path,
    place: Path,
    environment: Mapping[str, str] | None = None,
    *,
    is_new: bool = False,
    instead: Mapping[str, str] = MappingProxyType({}),
    programs: Mapping[str, str] | None = None,
) -> None:
    """Do all that a page says, in ``place``; ``is_new``: on a machine that has nothing yet.

    ``instead`` has other words for what a test cannot type as it is written; ``programs`` is the
    environment of blocks in Python, if it is not that of the terminals.
    """
    environment = environment or surroundings()
    programs = programs or environment
    with contextlib.ExitStack() as terminals:

        def terminal() -> Terminal:
            return terminals.enter_context(_terminal(place, environment))

        main, other = cached(terminal), cached(terminal)
        steps = list(blocks(page))
        for number, block in enumerate(steps):
            if block.file_name is not None:
                saved = place / block.file_name
                saved.parent.mkdir(parents=True, exist_ok=True)
                saved.write_text(block.body)
                if not _is_used(block, steps[number + 1 :]):
                    run(f"import {block.module}", place, programs)
            elif block.language == "python":
                run(block.body, place, programs)
            elif block.language == "console":
                here = other() if ANOTHER_TERMINAL in block.options else main()
                _follow(_reworded(block, instead), here, is_new=is_new)


def _is_used(saved: Block, later: Sequence[Block]) -> bool:
    """Whether the page itself shows that a saved file is good, before it is saved anew."""
    if saved.module is None:
        return True
    for block in later:
        if block.file_name == saved.file_name:
            return False
        if re.search(rf"\b{saved.module}\b", block.body):
            return True
    return False


def _follow(block: Block, terminal: Terminal, *, is_new: bool) -> None:
    steps = [each for each in commands(block) if is_new or not _SET_UP.match(each.typed)]
    for step in steps:
        is_last, expected = step is steps[-1], step.shown
        if step.typed == INTERRUPT:
            code, raw = terminal.interrupt()
        elif INTERRUPT in step.shown:
            split = step.shown.index(INTERRUPT)
            terminal.leave_running(Command(step.typed, step.shown[:split]))
            code, raw = terminal.interrupt()
            expected = step.shown[split + 1 :]
        elif is_last and ANOTHER_TERMINAL in block.options:
            terminal.leave_running(step)
            continue
        else:
            code, raw = terminal.type(step.typed)
        told = f"line {block.line}: {step.typed}\nexits {code} and shows:\n{raw}"
        assert code == (block.code if is_last else 0), told
        # What sets up a machine says much that depends on the machine.
        is_told = expected or not _SET_UP.match(step.typed)
        assert not is_told or shows(expected, screen(raw)), told


def _reworded(block: Block, instead: Mapping[str, str]) -> Block:
    body = block.body
    for written, typed in instead.items():
        body = body.replace(f"$ {written}", f"$ {typed}")
    return replace(block, body=body)


@contextlib.contextmanager
def _terminal(place: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(place, environment)
    try:
        yield terminal
    finally:
        terminal.close()


def run(code: str, place: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a block of Python as a reader would; return what it prints."""
    environment = environment or surroundings()
    paths = [str(place), *filter(None, [environment.get("PYTHONPATH")])]
    done = subprocess.run(
        ["python", "-c", code],
        cwd=place,
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


def surroundings() -> dict[str, str]:
    """The environment of a reader: none of ours, and none of the tests'."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "PYTEST_", "PIP_", "COV_"))
        and name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "MAKEFLAGS", "MFLAGS")
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
