"""Whether the driver can read the URL of a server, before anybody connects to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import BadOption

_ESCAPES: Final = "in a user or a password, write : / ? # @ % as %3A %2F %3F %23 %40 %25"


def check_address(location: str, shown: str, ours: Sequence[str]) -> None:
    """Refuse a URL that cannot be read, or is read as what nobody meant; ``ours`` are the options
    that it may have beside libpq's.

    libpq quotes what it could not read, and takes a piece of a password that was not escaped for a
    port or a host: so none of its words are passed on, only names of options.
    """
    try:
        found = conninfo_to_dict(location)
    except psycopg.ProgrammingError as error:
        what, _, name = str(error).strip().partition(': "')
        why = f"it cannot be read ({what}); {_ESCAPES}"
        if "query parameter" in what:
            option = name.rstrip('"')
            why = f"{what} {option!r}; a URL may have {', '.join(ours)}, and the options of libpq"
        raise BadOption("url", shown, why) from None
    ports = str(found.get("port", "")).split(",")
    if not all(port.isdigit() for port in ports if port):
        raise BadOption("url", shown, f"its port is no number; {_ESCAPES}")
    if "@" in str(found.get("host", "")):
        raise BadOption("url", shown, f"its host has an '@'; {_ESCAPES}")
