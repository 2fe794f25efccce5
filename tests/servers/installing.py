"""Installs the servers that the tests need, where one is missing and this user may.

    cd tests && python -m servers.installing

Looks first: with everything in place no other program is run. Debian would start what it installs;
while it works, a policy says that nothing is to be started, since the tests start their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.programs import NEEDED

POLICY = Path("/usr/sbin/policy-rc.d")
"""Asked by Debian's packages before they start a service; 101 means that it is forbidden."""


def missing() -> list[str]:
    """The packages of what is not there."""
    return sorted({program.package for program in NEEDED if program.path() is None})


def become() -> list[str]:
    """What goes before a command that only root may run."""
    return [] if os.geteuid() == 0 else ["sudo", "-n"]


@contextmanager
def nothing_is_started() -> Iterator[None]:
    if POLICY.exists():
        yield
        return
    text = "#!/bin/sh\nexit 101\n"
    root = become()
    subprocess.run([*root, "tee", str(POLICY)], input=text.encode(), stdout=subprocess.DEVNULL)
    subprocess.run([*root, "chmod", "755", str(POLICY)])
    try:
        yield
    finally:
        subprocess.run([*root, "rm", "-f", str(POLICY)])


def install(packages: list[str]) -> bool:
    """Try to install packages; say whether it went well."""
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    try:
        with nothing_is_started():
            for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
                subprocess.run([*become(), *quiet, *words], check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def main() -> int:
    packages = missing()
    if not packages:
        return 0
    print(f"the tests need servers that are not here; installing {' '.join(packages)}")
    if install(packages) and not missing():
        return 0
    print(
        f"Could not. Install them yourself, then run make again:\n"
        f"  Debian, Ubuntu: sudo apt-get install {' '.join(packages)}\n"
        f"  elsewhere: PostgreSQL 14 or newer and PgBouncer, with their programs on the PATH",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
