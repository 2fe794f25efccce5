"""Hides secrets in what is shown: arguments whose names say that they are secret, at any depth.

A name is secret if one of its words is (``db_password``, ``apiKey``, ``X-Auth-Token``), or if the
task says so with ``redact=``. Three things are shown, and each has a function here: stored JSON,
texts that may repeat a secret value of the job, and texts such as ``password=hunter2`` or
``postgresql://me:hunter2@db``, which name it themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import msgspec

HIDDEN: Final = "[redacted]"

SHORTEST: Final = 4
"""Characters of a secret value that is looked for in texts: shorter ones are in every text."""

_WORDS: Final = frozenset(
    (
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "pwd",
        "passcode",
        "secret",
        "secrets",
        "token",
        "jwt",
        "credential",
        "credentials",
        "authorization",
        "cookie",
        "cookies",
        "apikey",
        "accesskey",
        "privatekey",
        "cvv",
        "cvc",
    )
)
_PAIRS: Final = frozenset(
    (
        "api-key",
        "access-key",
        "private-key",
        "secret-key",
        "auth-key",
        "signing-key",
        "encryption-key",
        "client-key",
        "session-id",
    )
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_secret(name: str, also: Collection[str] = ()) -> bool:
    """The value under this name must not be shown; ``also`` are names that a task calls secret."""
    return _sounds_secret(name) or (bool(also) and name.lower() in {each.lower() for each in also})


@lru_cache(maxsize=1024)
def _sounds_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not _WORDS.isdisjoint(words):
        return True
    return any(f"{first}-{second}" in _PAIRS for first, second in pairwise(words))


# --- JSON ---------------------------------------------------------------------------------------


def redacted(value: Any, also: Collection[str] = ()) -> Any:
    """The value with every secret in it hidden. Nothing is changed in place."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if each is not None and isinstance(name, str) and is_secret(name, also)
            else redacted(each, also)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(each, also) for each in value]
    return value


def redacted_json(stored: bytes, also: Collection[str] = ()) -> bytes:
    """Stored JSON with its secrets hidden; byte by byte as it is where there are none."""
    try:
        value = json.loads(stored)
        shown = redacted(value, also)
    except (ValueError, RecursionError):
        return redacted_text(stored.decode(errors="backslashreplace")).encode()
    return stored if shown == value else json.dumps(shown, ensure_ascii=False).encode()


# --- texts --------------------------------------------------------------------------------------


def secret_values(stored: bytes, also: Collection[str] = ()) -> list[str]:
    """The secret values in stored arguments, as texts may repeat them, the longest first."""
    if len(stored) <= len("{}"):
        return []
    try:
        leaves = set(_secret_leaves(msgspec.json.decode(stored), also, is_inside=False))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    spelt = {form for leaf in leaves if len(leaf) >= SHORTEST for form in _forms(leaf)}
    return sorted(spelt, key=len, reverse=True)


def _secret_leaves(value: Any, also: Collection[str], *, is_inside: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _secret_leaves(each, also, is_inside=is_inside or is_secret(name, also))
    elif isinstance(value, list):
        for each in value:
            yield from _secret_leaves(each, also, is_inside=is_inside)
    elif is_inside and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def _forms(leaf: str) -> Iterator[str]:
    """A value as it is, as Python would quote it and as JSON would."""
    yield leaf
    yield repr(leaf)[1:-1]
    yield json.dumps(leaf)[1:-1]


def without(text: str, values: Collection[str]) -> str:
    """The text with these values hidden."""
    for value in values:
        if value in text:
            text = text.replace(value, HIDDEN)
    return text


_NAME: Final = (
    r"[\w-]{0,40}(?:passw|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|credential"
    r"|authorization|cookie)[\w-]{0,40}"
)
_NAMED: Final = re.compile(
    rf"(\b{_NAME}\s*=\s*|([\"']){_NAME}\2\s*[:=]\s*)"
    r"(?:\[redacted\]|b?'[^']*'|b?\"[^\"]*\"|[^\s,;&)\]}\"']+)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"\b(authorization[\"']?\s*[:=]\s*[\"']?(?:basic\s+)?|bearer\s+(?=[\w+/=.~-]*\d))[\w+/=.~-]{8,}",
    re.IGNORECASE,
)
_IN_URL: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@]*:)[^\s/@]+(?=@)", re.IGNORECASE)


def _may_name_a_secret(text: str) -> bool:
    """What is quick to see: most texts have nothing that even looks like it.

    Written out, because a loop over the words takes five times as long, for each failed attempt.
    """
    text = text.lower()
    return (
        "pass" in text
        or "token" in text
        or "secret" in text
        or "key" in text
        or "pwd" in text
        or "cred" in text
        or "authoriz" in text
        or "bearer" in text
        or "cookie" in text
        or "://" in text
    )


def redacted_text(text: str) -> str:
    """The text without the values that it names itself, such as ``password=...``."""
    if not _may_name_a_secret(text):
        return text
    if "://" in text:
        text = _IN_URL.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def redacted_traceback(text: str, values: Collection[str]) -> str:
    """A traceback without secret values. Its lines of code stay as they are, with their names: only
    what errors say of themselves, which is not indented, is searched for names.
    """
    text = without(text, values)
    if not _may_name_a_secret(text):
        return text
    lines = text.splitlines(keepends=True)
    return "".join([line if line[:1].isspace() else redacted_text(line) for line in lines])
