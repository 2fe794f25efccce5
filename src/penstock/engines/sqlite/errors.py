"""What SQLite and the file system raise, as the errors of the contract."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.errors import (
    EngineBusy,
    EngineCorrupt,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineUnavailable,
    ItemRefused,
    PenstockError,
)

_BY_CODE: Final[dict[int, type[EngineError]]] = {
    sqlite3.SQLITE_BUSY: EngineBusy,
    sqlite3.SQLITE_LOCKED: EngineBusy,
    sqlite3.SQLITE_READONLY: EngineReadOnly,
    sqlite3.SQLITE_PERM: EngineReadOnly,
    sqlite3.SQLITE_FULL: EngineFull,
    sqlite3.SQLITE_CORRUPT: EngineCorrupt,
    sqlite3.SQLITE_NOTADB: EngineCorrupt,
    sqlite3.SQLITE_TOOBIG: ItemRefused,
    sqlite3.SQLITE_MISMATCH: ItemRefused,
    sqlite3.SQLITE_CONSTRAINT: ItemRefused,
}


@contextmanager
def named_errors(name: str, path: str) -> Iterator[None]:
    """Turn errors of SQLite and the file system into those of the contract."""
    try:
        yield
    except PenstockError:
        raise
    except (UnicodeEncodeError, OverflowError, sqlite3.DataError, sqlite3.InterfaceError) as error:
        raise ItemRefused(name, str(error)) from error
    except sqlite3.Error as error:
        raise _named(error, name, path) from error
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError out of a signal handler: the system would have said a number
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise EngineReadOnly(name, str(error)) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EngineFull(name, str(error)) from error
        raise EngineUnavailable(name, str(error)) from error


def _named(error: sqlite3.Error, name: str, path: str) -> EngineError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = str(error)
    if code == sqlite3.SQLITE_CANTOPEN:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            return EngineUnavailable(name, f"there is no directory {folder!r}: make it first")
        if not os.access(folder, os.W_OK):
            return EngineReadOnly(name, f"directory {folder!r} cannot be written")
    kind: Any = _BY_CODE.get(code, EngineUnavailable)
    named: EngineError = kind(name, text)
    return named
