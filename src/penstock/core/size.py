"""Sizes as people write them: bytes, or text such as ``"512MB"`` and ``"2GiB"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.errors import BadOption

UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "B": 1,
        **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
        **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    }
)
"""Bytes per unit; ``MB`` is a million, ``MiB`` is 1,048,576."""

_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_BY_NAME: Final = MappingProxyType({unit.lower(): factor for unit, factor in UNITS.items()})


def size(value: int | str, *, name: str) -> int:
    """The size in bytes; ``name`` is what the caller calls it, for the error.

    Text is a number with a unit in any case of letters; without one it is bytes.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _bad(name, value)
    if isinstance(value, int):
        found = value
    else:
        part = _TEXT.fullmatch(value)
        if part is None or (part[2] or "B").lower() not in _BY_NAME:
            raise _bad(name, value)
        found = int(float(part[1]) * _BY_NAME[(part[2] or "B").lower()])
    if found < 0:
        raise BadOption(name, value, "a size is not negative")
    return found


def _bad(name: str, value: object) -> BadOption:
    return BadOption(name, value, "give bytes, or text such as '512MB' or '2GiB'")
