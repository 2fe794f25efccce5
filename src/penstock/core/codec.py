"""One type's way into JSON and back, tried out before anyone relies on it.

Whatever is written is read again at once and compared: what would arrive changed is refused where
it was given, never found out at run. That costs well under a microsecond for a small value, since
encoding, decoding and comparing are one call each into msgspec.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.inspect import Type, type_info

from penstock.core import wire
from penstock.core.fidelity import Comparison, Flaw, flaw
from penstock.errors import BadArguments, BadPayload, NotAnObject, PayloadTooLarge, Unencodable

LIMIT: Final = 1 << 20
"""How many bytes of JSON a job's arguments or its result may have unless it is said otherwise."""

STRICT: Final = Comparison()
FROM_JSON: Final = Comparison(takes_base64=True)
LOOSE: Final = Comparison(takes_base64=True, takes_misfits=True)

TOO_DEEP: Final = "it is nested too deeply, or holds itself"

_PLAIN_DECODER: Final = msgspec.json.Decoder()
_PLACE: Final = re.compile(r" - at `(key)?( in )?\$?(.*?)`$")
_GOT: Final = re.compile(r"got .*$")


class Codec:
    """Writes and reads one type for one task; ``label`` names a place in it for people."""

    __slots__ = ("_decoder", "_info", "_is_doubtful", "_label", "_task")

    def __init__(self, kind: Any, task: str, label: Callable[[str], str]) -> None:
        self._task = task
        self._label = label
        self._decoder = wire.decoder(kind)
        self._info: Type | None = type_info(kind)
        # A subclass that is lost may well be equal to the plain value that comes back.
        self._is_doubtful = wire.holds_lost(kind)

    def write(self, value: Any, limit: int, rules: Comparison = STRICT) -> bytes:
        """The JSON for a value that will be read as the same value.

        On failure: Unencodable for what has no JSON form, BadArguments for what does not fit the
        type, PayloadTooLarge.
        """
        try:
            payload = wire.ENCODER.encode(value)
        except Exception as error:  # msgspec's, a model's own, or RecursionError
            raise self._unencodable(value, error) from error
        if len(payload) > limit:
            raise PayloadTooLarge(self._task, len(payload), limit)
        try:
            back = self._decoder.decode(payload)
            if back == value and not self._is_doubtful:
                return payload
            info = self._info
        except Exception as error:  # a type's own code runs here too
            if not rules.takes_misfits:
                raise self._misfit(value, payload, error) from error
            back, info = None, None
        self._compare(value, payload, back, info, rules)
        return payload

    def read(self, payload: bytes) -> Any:
        """The value that was written; NotAnObject for what is no JSON, BadPayload for a misfit."""
        try:
            return self._decoder.decode(payload)
        except Exception as error:
            raise self.misread(payload, error) from error

    def misread(self, payload: bytes, error: Exception) -> BadPayload:
        """The error for a payload that could not be read as the type."""
        try:
            found = _PLAIN_DECODER.decode(payload)
        except RecursionError:
            return BadPayload(self._task, TOO_DEEP)
        except msgspec.ValidationError as trouble:
            return BadPayload(self._task, str(trouble))
        except ValueError as trouble:
            return NotAnObject(self._task, str(trouble))
        path, why = _split(error)
        if not isinstance(found, dict) and not path:
            return NotAnObject(self._task, f"it is of type {_json_type(found)}")
        return BadPayload(self._task, f"{self._label(path)}: {why}")

    def _compare(
        self, value: Any, payload: bytes, back: Any, info: Type | None, rules: Comparison
    ) -> None:
        try:
            # msgspec writes NaN and the infinities as null.
            found = flaw(value) if b"null" in payload else None
            if found is None:
                back = _PLAIN_DECODER.decode(payload) if info is None else back
                found = rules.change(info, value, back)
        except RecursionError as error:
            raise self._unencodable(value, error) from error
        if found is not None:
            raise self._refusal(found)

    def _refusal(self, found: Flaw) -> BadArguments | Unencodable:
        where = self._label(found.path)
        if found.is_misfit:
            return BadArguments(self._task, f"{where}: {found.why}")
        return Unencodable(self._task, where, found.why)
