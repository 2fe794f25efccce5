"""One type's way into JSON and back, tried out before anyone relies on it.

Whatever is written is read again at once and compared: what would arrive changed is refused where
it was given, never found out at run. For a small value that costs well under a microsecond, since
encoding, decoding and comparing are one call each into msgspec. "The same" is what the values'
own ``==`` says; only where it says no, the two are walked through.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.inspect import type_info

from penstock.core import wire
from penstock.core.fidelity import Comparison, Flaw, flaw, is_equal, nonfinite
from penstock.errors import BadArguments, PayloadTooLarge, Unencodable

LIMIT: Final = 1 << 20
"""How many bytes of JSON a job's arguments or its result may have unless it is said otherwise."""

STRICT: Final = Comparison()
FROM_JSON: Final = Comparison(takes_base64=True)
LOOSE: Final = Comparison(takes_base64=True, takes_misfits=True)

TOO_DEEP: Final = "it is nested too deeply, or holds itself"

_PLACE: Final = re.compile(r" - at (?:(`key`) in )?`\$(.*)`$")
_EXPECTED: Final = re.compile(r"(Expected .*), got \w+$")


class Codec:
    """Writes and reads values of one type; ``label`` turns a path in them into words."""

    __slots__ = ("_info", "_is_doubtful", "_label", "read")

    read: Callable[[bytes], Any]
    """The value that was written; what msgspec or the type itself raises if it does not fit."""

    def __init__(self, kind: Any, label: Callable[[str], str]) -> None:
        self.read = wire.decoder(kind).decode
        self._info = type_info(kind)
        self._label = label
        # A subclass that is lost may well be equal to the plain value that comes back.
        self._is_doubtful = wire.holds_lost(self._info)

    def write(self, value: Any, task: str, limit: int, rules: Comparison = STRICT) -> bytes:
        """JSON that will be read as the same value.

        On failure: Unencodable for what has no JSON form, BadArguments for what does not fit the
        type, PayloadTooLarge.
        """
        try:
            payload = wire.ENCODER.encode(value)
        except Exception as error:  # msgspec's, a model's own, or RecursionError
            raise self._unencodable(value, task, error) from error
        if len(payload) > limit:
            raise PayloadTooLarge(task, len(payload), limit)
        try:
            back = self.read(payload)
        except Exception as error:  # a type's own code runs here too
            if not rules.takes_misfits:
                raise self._misfit(value, payload, task, error) from error
            self._inspect(value, payload, task, rules)
            return payload
        if self._is_doubtful or not is_equal(value, back):
            self._inspect(value, payload, task, rules, back)
        return payload

    def explain(self, error: Exception) -> str:
        """What ``read`` raised, in one line that begins with the place."""
        path, why = _split(error)
        return f"{self._label(path)}: {why}"

    def _inspect(
        self, value: Any, payload: bytes, task: str, rules: Comparison, *backs: Any
    ) -> None:
        """Refuse what would arrive changed; without ``backs``, compare with plain JSON."""
        found = _searched(nonfinite, value) if b"null" in payload else None
        if found is None and backs:
            found = _searched(rules.change, self._info, value, backs[0])
        elif found is None:
            found = _searched(rules.change, None, value, msgspec.json.decode(payload))
        if found is not None:
            raise self._refusal(found, task)

    def _refusal(self, found: Flaw, task: str) -> BadArguments | Unencodable:
        where = self._label(found.path)
        if found.is_misfit:
            return BadArguments(task, f"{where}: {found.why}")
        return Unencodable(task, where, found.why)

    def _unencodable(self, value: Any, task: str, error: Exception) -> Unencodable:
        found = _searched(flaw, value) or Flaw("", str(error))
        return Unencodable(task, self._label(found.path), found.why)

    def _misfit(
        self, value: Any, payload: bytes, task: str, error: Exception
    ) -> BadArguments | Unencodable:
        if isinstance(error, RecursionError):
            return Unencodable(task, self._label(""), TOO_DEEP)
        found = _searched(nonfinite, value) if b"null" in payload else None
        if found is not None:
            return self._refusal(found, task)
        path, why = _split(error)
        given = self._argument(value, path)
        if given is not msgspec.UNSET:
            # msgspec names the JSON type, which for a Decimal or a UUID is not what was given.
            why = _EXPECTED.sub(rf"\1, got {type(given).__name__}", why)
        return BadArguments(task, f"{self._label(path)}: {why}")

    def _argument(self, value: Any, path: str) -> Any:
        """The field that a path of one step leads to, or UNSET."""
        for field in getattr(self._info, "fields", ()):
            if path == f".{field.encode_name}":
                return getattr(value, field.name)
        return msgspec.UNSET


def _searched(search: Callable[..., Flaw | None], *values: Any) -> Flaw | None:
    """What a search finds; one that does not come to an end is a find too."""
    try:
        return search(*values)
    except RecursionError:
        return Flaw("", TOO_DEEP)


def _split(error: Exception) -> tuple[str, str]:
    """The path and the sentence of what msgspec raised."""
    if isinstance(error, RecursionError):
        return "", TOO_DEEP
    if not isinstance(error, msgspec.ValidationError):
        return "", f"{type(error).__name__}: {error}"
    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        return "", text.replace("`", "")
    key = " key" if place[1] else ""
    return place[2] + key, text[: place.start()].replace("`", "")
