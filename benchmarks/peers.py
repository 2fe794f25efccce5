"""The environment of the peers, ``build/peers``: Python packages and Node modules, all pinned.

They may need other versions of what Penstock's own environment has, so they are kept apart.
Penstock is installed beside them: all contenders in Python run on the same Python.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
PLACE = ROOT / "build" / "peers"
MODULES = "BENCHMARK_MODULES"
"""The variable with a file beside which Node finds the modules."""
LEAST = (3, 12)
"""Oban for Python needs it."""


def environment() -> Path:
    """Make the peers' environment unless it is there; return its Python."""
    python = PLACE / "python" / "bin" / "python"
    needed = [HERE / "peers.txt"]
    if _is_made("python", needed):
        return python
    base = _base()
    print(f"making {PLACE.relative_to(ROOT)} with {base}", file=sys.stderr, flush=True)
    _run(base, "-m", "venv", "--clear", str(PLACE / "python"))
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(str(python), *install, "-r", str(needed[0]), "-e", f"{ROOT}[postgres,fast]")
    _mark("python", needed)
    return python


def modules() -> Path | None:
    """Install the Node modules unless they are there; None: there is no Node."""
    beside = PLACE / "node" / "package.json"
    needed = [HERE / "graphile" / "package.json", HERE / "graphile" / "package-lock.json"]
    if _is_made("node", needed):
        return beside
    npm = shutil.which("npm")
    if npm is None:
        return None
    beside.parent.mkdir(parents=True, exist_ok=True)
    for file in needed:
        shutil.copy(file, beside.parent)
    _run(npm, "ci", "--silent", "--no-audit", "--no-fund", place=beside.parent)
    _mark("node", needed)
    return beside


def _base() -> str:
    """A Python that all peers run on; else the one that runs now, and some peers are left out."""
    for name in _known():
        ask = f"import sys; sys.exit(sys.version_info < {LEAST})"
        if subprocess.run([name, "-c", ask], capture_output=True).returncode == 0:
            return name
    return sys.executable


def _known() -> Iterator[str]:
    yield sys.executable
    yield from filter(
        None, map(shutil.which, ("python3.13", "python3.12", "python3.14", "python3"))
    )
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(map(str, versions.glob("3.1[2-9]*/bin/python")))


def _run(*command: str, place: Path = ROOT) -> None:
    subprocess.run(command, cwd=place, check=True, stdout=sys.stderr)


def _is_made(part: str, needed: list[Path]) -> bool:
    stamp = PLACE / f"{part}.made"
    return stamp.exists() and stamp.read_text() == _digest(needed)


def _mark(part: str, needed: list[Path]) -> None:
    (PLACE / f"{part}.made").write_text(_digest(needed))


def _digest(needed: list[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in needed)).hexdigest()
