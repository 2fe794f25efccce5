"""What PostgreSQL and the way to it raise, in the words of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors

from penstock.errors import (
    EngineBusy,
    EngineCorrupt,
    EngineCrowded,
    EngineError,
    EngineForbidden,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    ItemRefused,
    PenstockError,
)

NAME: Final = "postgresql"
"""What messages call the store."""

KNOWN_ID: Final = "PS001"
"""``put`` found an id that is taken, or a unique key that changed hands meanwhile."""
SAME_ID: Final = "23505"
"""A job of this id has not ended yet."""
NO_LEASE: Final = "PS002"
"""``exchange`` found no lease."""
LOCKED: Final = "55P03"
"""A row was locked for longer than we wait."""

_BY_STATE: Final[dict[str, type[EngineError]]] = {
    "28000": EngineRefused,
    "28P01": EngineRefused,
    "3D000": EngineRefused,  # no such database
    "23514": ItemRefused,  # a table does not take this
    "42501": EngineForbidden,  # insufficient privilege
    "53100": EngineFull,  # disk full
    "53300": EngineCrowded,  # too many connections
    "55P03": EngineBusy,  # lock not available within lock_timeout
    "57014": EngineTimeout,  # cancelled, by statement_timeout or by a person
    "54000": ItemRefused,  # some limit of the program, such as an index row that is too large
}
_BY_CLASS: Final[dict[str, type[EngineError]]] = {"22": ItemRefused, "54": ItemRefused}

_REFUSALS: Final[tuple[tuple[type[EngineError], re.Pattern[str]], ...]] = (
    (
        EngineCrowded,
        re.compile("too many (clients|connections)|connection slots|no more connections allowed"),
    ),
    (
        EngineRefused,
        re.compile(
            r"authentication failed|no password supplied|no pg_hba\.conf entry"
            r"|no such (user|database)"
            r"|(role|database) \".*\" does not exist|permission denied for database"
            r"|not permitted to log in|SSL was required|certificate verify failed"
            r"|invalid connection option|invalid [a-z]+ value|invalid URI"
        ),
    ),
)
"""A connection that is refused is given no state, only a text; in another language it is tried
again."""

REPEATED: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""Another transaction was faster: nothing was written, and the next try may get through."""


def missing_day(error: psycopg.Error) -> float | None:
    """When the day begins on which a job may be forgotten that could not end, because the history
    has no table for that day; None: the error says something else.
    """
    if not isinstance(error, errors.CheckViolation) or error.diag.constraint_name is not None:
        return None
    instant = _INSTANT.search(error.diag.message_detail or "")
    return None if instant is None else float(instant[1]) // DAY * DAY


DAY: Final = 86_400.0
_INSTANT: Final = re.compile(r"\(([-+.0-9e]+)\)\D*$")
"""The last number in parentheses, in whatever language it is said."""


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn what the driver raises into the errors of the contract."""
    try:
        yield
    except PenstockError:
        raise
    except (UnicodeEncodeError, OverflowError, psycopg.DataError) as error:
        raise ItemRefused(NAME, line(error)) from error
    except psycopg.Error as error:
        raise named(error) from error
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError that is not the system's
        raise EngineUnavailable(NAME, str(error)) from error


def named(error: psycopg.Error) -> EngineError:
    """The contract's error for one of the driver's."""
    state, text = error.sqlstate or "", line(error)
    if state == "25006":  # read only transaction: a standby, or told so
        return EngineReadOnly(NAME, text, "name the primary server in the URL")
    if state in ("XX001", "XX002"):  # data or an index is corrupted
        return EngineCorrupt(NAME, text, "ask penstock doctor --thorough, and restore a backup")
    kind: Any = _BY_STATE.get(state) or _BY_CLASS.get(state[:2]) or _refusal(state, text)
    found: EngineError = kind(NAME, text)
    return found


def _refusal(state: str, text: str) -> type[EngineError]:
    found = (kind for kind, said in _REFUSALS if not state and said.search(text))
    return next(found, EngineUnavailable)


def line(error: BaseException) -> str:
    """One line of what it says, without the questions that libpq asks back."""
    told = [each for each in str(error).splitlines() if not each.lstrip().startswith("Is the ")]
    text = " ".join(" ".join(told).split()).removeprefix("connection failed: ")
    return text or type(error).__name__


def says(error: EngineUnavailable, state: str) -> bool:
    """The server raised this very state."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and cause.sqlstate == state
