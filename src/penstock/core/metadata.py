"""A job's metadata: a small JSON object that travels with it, and to the jobs that it enqueues.

It is for what surrounds the work: the tenant, who asked, a W3C ``traceparent``. Names that begin
with ``penstock.`` are our own, of this one job, and not shown to its handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.core.job import Draft
from penstock.errors import BadOption

LIMIT: Final = 4096
"""Bytes of JSON."""

OURS: Final = "penstock."

REDACT: Final = f"{OURS}redact"
"""Which arguments of the job are secret, beside those whose names say so."""


def read_meta(stored: bytes | None) -> dict[str, Any]:
    """What a caller gave the job; nothing for what is no JSON object."""
    return {name: value for name, value in _all(stored).items() if not name.startswith(OURS)}


def redacted_names(stored: bytes | None) -> tuple[str, ...]:
    """The arguments that the job's task calls secret."""
    if stored is None or REDACT.encode() not in stored:
        return ()
    names = _all(stored).get(REDACT)
    return tuple(filter(str.__instancecheck__, names)) if isinstance(names, list) else ()


def _all(stored: bytes | None) -> dict[str, Any]:
    if stored is None:
        return {}
    try:
        found = msgspec.json.decode(stored)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def checked_meta(value: object) -> dict[str, Any]:
    """A copy of what a caller gives, as it will be read again.

    On failure: ``BadOption``.
    """
    if not isinstance(value, Mapping):
        raise BadOption("meta", value, "give a dict, such as {'tenant': 'acme'}")
    for name in value:
        if not isinstance(name, str) or name.startswith(OURS):
            why = f"the name {name!r} cannot be used: give text that does not begin with {OURS!r}"
            raise BadOption("meta", name, why)
    read: dict[str, Any] = msgspec.json.decode(_encoded(dict(value)))
    return read


def write_meta(meta: Mapping[str, Any], redact: tuple[str, ...] = ()) -> bytes | None:
    """Metadata as it is stored, with the arguments that the task calls secret.

    On failure: ``BadOption`` if it is more than ``LIMIT`` bytes, or no JSON.
    """
    if not meta and not redact:
        return None
    return _encoded({**meta, REDACT: redact} if redact else meta)


def _encoded(meta: Mapping[str, Any]) -> bytes:
    try:
        written = msgspec.json.encode(meta)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadOption("meta", _brief(meta), f"it cannot be written as JSON: {error}") from error
    if len(written) > LIMIT:
        why = f"{len(written)} bytes of JSON are over the limit of {LIMIT}; pass a reference"
        raise BadOption("meta", _brief(meta), why)
    return written


def _brief(meta: Mapping[str, Any]) -> list[str]:
    """The names only: an error must not repeat thousands of bytes, or a secret."""
    return list(meta)


class NewJob:
    """A job that is about to be enqueued, as ``@app.before_enqueue`` sees it.

    ``meta`` and ``correlation_id`` may be changed; the rest is for reading.
    """

    __slots__ = ("_arguments", "_draft", "correlation_id", "meta")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._arguments: dict[str, Any] | None = None
        self.meta: dict[str, Any] = read_meta(draft.meta)
        """What travels with the job: given by its caller, or taken over from the job that enqueues
        it."""
        self.correlation_id: str | None = draft.correlation_id

    def __repr__(self) -> str:
        return f"<NewJob {self.id} of {self.task}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._draft.id

    @property
    def task(self) -> str:
        """The task's name."""
        return self._draft.task

    @property
    def queue(self) -> str:
        """Where it will wait."""
        return self._draft.queue

    @property
    def key(self) -> str | None:
        """The tenant or resource it belongs to."""
        return self._draft.key

    @property
    def tags(self) -> tuple[str, ...]:
        """Its labels."""
        return self._draft.tags

    @property
    def arguments(self) -> dict[str, Any]:
        """Its arguments by name, as plain JSON; changes to them change nothing."""
        if self._arguments is None:
            self._arguments = msgspec.json.decode(self._draft.payload)
        return self._arguments
