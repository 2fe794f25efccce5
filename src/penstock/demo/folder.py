"""Where the demo keeps what it makes: a folder with the store, the log and the pictures."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shlex import quote as quoted
from urllib.parse import quote

from penstock.errors import BadOption, EngineFull, EngineReadOnly, EngineUnavailable, PenstockError


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The demo's own folder."""

    path: Path

    @property
    def url(self) -> str:
        """The store."""
        return f"sqlite:///{quote(str(self.path / 'jobs.db'))}"

    @property
    def log(self) -> Path:
        """The log of the worker processes."""
        return self.path / "workers.log"

    def remove(self) -> None:
        """Delete it with all it holds."""
        shutil.rmtree(self.path, ignore_errors=True)


def make(keep: str | None) -> DemoFolder:
    """Make a new folder: the one that ``keep`` names, else a temporary one.

    On failure: ``BadOption`` if the name is not free, ``EngineFull``, ``EngineReadOnly``.
    """
    if keep is None:
        try:
            return DemoFolder(Path(tempfile.mkdtemp(prefix="penstock-demo-")).resolve())
        except OSError as error:
            raise _named("the temporary directory", error) from error
    folder = Path(keep).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            why = "something is in it already; name a new folder, or empty this one"
            raise BadOption("--keep", keep, why)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadOption("--keep", keep, "this is a file; name a new folder") from error
    except OSError as error:
        raise _named(f"folder {keep!r}", error) from error
    return DemoFolder(folder)


def _named(what: str, error: OSError) -> PenstockError:
    why = error.strerror or str(error)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return EngineFull(what, why)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOENT:
            return EngineReadOnly(what, why)
        case _:
            return EngineUnavailable(what, why)


def command(*words: str) -> str:
    """A command line of Penstock that works in the shell that this process was started from."""
    return " ".join((_program(), *(quoted(word) for word in words)))


def _program() -> str:
    """The shortest name by which that shell finds the ``penstock`` of this Python."""
    beside = Path(sys.executable).parent / "penstock"
    found = shutil.which("penstock")
    if found is not None and _is_same(found, beside):
        return "penstock"
    if not os.access(beside, os.X_OK):
        return f"{quoted(sys.executable)} -m penstock"
    near = os.path.relpath(beside)
    return quoted(str(beside) if near.startswith("..") else near)


def _is_same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
