"""Which server programs the tests need, where they are, and as whom they run."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """A program by its name, and the Debian package that has it."""

    name: str
    package: str
    elsewhere: tuple[str, ...] = ()
    """Directories that are not on everybody's PATH, as patterns below the root."""

    def path(self) -> str | None:
        """Where it is; the newest where there are several."""
        if on_path := shutil.which(self.name):
            return on_path
        found = [
            path
            for pattern in self.elsewhere
            for path in Path("/").glob(f"{pattern}/{self.name}")
            if os.access(path, os.X_OK)
        ]
        return str(max(found, key=_version)) if found else None

    def must(self) -> str:
        """Where it is.

        On failure: ``ServerMissing``; a test that needs a server is never left out.
        """
        if path := self.path():
            return path
        raise ServerMissing(self)


class ServerMissing(Exception):
    """A program that the tests need is not on this machine."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.program = program

    def __str__(self) -> str:
        return (
            f"the tests need the program {self.program.name!r}, which is not on this machine; "
            f"run 'make servers', or 'sudo apt-get install {self.program.package}'"
        )


_POSTGRES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin")

INITDB = Program("initdb", "postgresql", _POSTGRES)
POSTGRES = Program("postgres", "postgresql", _POSTGRES)
PGBOUNCER = Program("pgbouncer", "pgbouncer", ("usr/sbin", "usr/local/sbin"))

NEEDED = (INITDB, POSTGRES, PGBOUNCER)


def stand_in() -> str | None:
    """The user that servers run as where the tests run as root, which servers refuse to be."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
