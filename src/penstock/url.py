"""Where the jobs live, as a URL: its parts, and how to show it without its secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import BadOption, UnknownScheme

KNOWN: Final = ("memory://", "sqlite:///", "postgresql://", "redis://")
"""What a URL may start with, for messages."""

_SCHEMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "memory": "memory",
        "sqlite": "sqlite",
        "postgresql": "postgresql",
        "postgres": "postgresql",
        "redis": "redis",
        "rediss": "redis",
    }
)
POSTGRES: Final = ("schema", "connections", "transactions", "connect_timeout", "listen")
"""Options of a PostgreSQL URL that are for Penstock; all others are for the driver."""
_SECRET: Final = re.compile(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token)[^=&]*=)[^&#]*")


@dataclass(frozen=True, slots=True)
class Url:
    """A store's address.

    ``location`` is the absolute path of a file, the name of a memory store ("" has no name and is
    nobody else's), or the URL of a server as its driver reads it, secrets included.
    """

    scheme: str
    location: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return hidden(self.text)


def parse(text: str) -> Url:
    """Read a URL; a relative path is taken from the present working directory, once."""
    if not isinstance(text, str):
        raise BadOption("url", text, "give text such as 'sqlite:///jobs.db'")
    start, mark, _ = text.partition("://")
    scheme = _SCHEMES.get(start.lower())
    if not mark or scheme is None:
        raise UnknownScheme(hidden(text), KNOWN)
    if scheme == "postgresql":
        return _postgresql(text)
    if scheme not in ("memory", "sqlite"):
        return Url(scheme, text=text)
    # Only now is the text known to hold no secret that urlsplit might quote in an error.
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise BadOption("url", hidden(text), f"it cannot be read ({error})") from error
    if "#" in text:
        raise BadOption("url", hidden(text), "it has a '#', which ends a URL; write it as %23")
    options = MappingProxyType(dict(parse_qsl(parts.query, keep_blank_values=True)))
    if scheme == "memory":
        return Url(scheme, unquote(parts.netloc + parts.path), options, text)
    return Url(scheme, _path(text, parts.netloc, parts.path), options, text)


def _postgresql(text: str) -> Url:
    """The URL of a server: our options are taken out, the rest is for its driver."""
    location, mark, query = text.partition("?")
    given = [item.partition("=") for item in query.split("&") if item]
    ours = {name: unquote(value) for name, _, value in given if name in POSTGRES}
    theirs = "&".join("".join(item) for item in given if item[0] not in POSTGRES)
    _, _, rest = location.partition("://")
    return Url("postgresql", f"postgresql://{rest}{mark and theirs and '?'}{theirs}", ours, text)


def _path(text: str, host: str, path: str) -> str:
    """The file that a sqlite URL names."""
    shown = hidden(text)
    if host:
        why = "a file needs three slashes: sqlite:///relative.db, or sqlite:////absolute/path.db"
        raise BadOption("url", shown, why)
    name = unquote(path[1:])
    if name in ("", ":memory:"):
        raise BadOption("url", shown, "it names no file; write sqlite:///jobs.db, or memory://")
    if "\0" in name:
        raise BadOption("url", shown, "a file name cannot contain NUL")
    return os.path.abspath(name)


def hidden(text: str) -> str:
    """The URL without its passwords, however wrong it is otherwise."""
    text = _SECRET.sub(r"\1***", text)
    start, mark, rest = text.rpartition("@")
    if not mark:
        return text
    scheme, found, login = start.partition("://")
    if not found:
        scheme, login = "", start
    user, colon, _ = login.partition(":")
    return f"{scheme}{found}{user}{':***' if colon else ''}@{rest}"
