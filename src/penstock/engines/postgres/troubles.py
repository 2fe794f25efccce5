"""What PostgreSQL and the way to it raise, in the words of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors

from penstock.errors import (
    EngineBusy,
    EngineCorrupt,
    EngineError,
    EngineForbidden,
    EngineFull,
    EngineReadOnly,
    EngineUnavailable,
    ItemContested,
    ItemRefused,
    PenstockError,
)

KNOWN_ID: Final = "PS001"
"""``put_plain`` found an id that is known."""
SAME_ID: Final = "23505"
"""A job of this id has not ended yet."""
NO_LEASE: Final = "PS002"
"""``exchange`` found no lease."""
CONTESTED: Final = "PS003"
"""``put`` found an id or a unique key that an open transaction has."""
LOCKED: Final = "55P03"
"""A row was locked for longer than we wait."""

_BY_STATE: Final[dict[str, type[EngineError]]] = {
    "25006": EngineReadOnly,  # read only transaction: a standby, or told so
    "42501": EngineForbidden,  # insufficient privilege
    "53100": EngineFull,  # disk full
    "55P03": EngineBusy,  # lock not available within lock_timeout
    "57014": EngineBusy,  # cancelled, by statement_timeout or by a person
    "54000": ItemRefused,  # some limit of the program, such as an index row that is too large
    "XX001": EngineCorrupt,
    "XX002": EngineCorrupt,
}
_BY_CLASS: Final[dict[str, type[EngineError]]] = {"22": ItemRefused, "54": ItemRefused}

REPEATED: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""Somebody else was faster: nothing was written, and the next try may get through."""


def is_missing_day(error: psycopg.Error) -> bool:
    """A job could not end because the day has no partition yet."""
    return isinstance(error, errors.CheckViolation) and error.diag.constraint_name is None


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Turn what the driver raises into the errors of the contract."""
    try:
        yield
    except PenstockError:
        raise
    except (UnicodeEncodeError, OverflowError, psycopg.DataError) as error:
        raise ItemRefused(name, _text(error)) from error
    except psycopg.Error as error:
        raise named(error, name) from error
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError that is not the system's
        raise EngineUnavailable(name, str(error)) from error


def named(error: psycopg.Error, name: str) -> EngineError:
    """The contract's error for one of the driver's."""
    state = error.sqlstate or ""
    if state == CONTESTED:
        return ItemContested(name, error.diag.message_primary or _text(error), _index(error))
    kind: Any = _BY_STATE.get(state) or _BY_CLASS.get(state[:2], EngineUnavailable)
    found: EngineError = kind(name, _text(error))
    return found


def _index(error: psycopg.Error) -> int | None:
    """Which item of its batch ``put`` could not wait for."""
    detail = error.diag.message_detail
    return None if detail is None else int(detail)


def _text(error: BaseException) -> str:
    """One line of what it says."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
