"""SQL kept in ``.sql`` files: one named block per statement."""

from __future__ import annotations

from functools import cache
from importlib import resources
from types import MappingProxyType


@cache
def statements(*paths: str) -> MappingProxyType[str, str]:
    """Read the blocks that begin with ``-- name: NAME`` in files below ``engines/sql``."""
    blocks: dict[str, str] = {}
    text = "\n".join(map(_read, paths))
    for block in text.split("-- name: ")[1:]:
        name, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        blocks[name.strip()] = "\n".join(lines).strip()
    return MappingProxyType(blocks)


@cache
def migrations(folder: str) -> tuple[str, ...]:
    """Return the numbered scripts of a folder below ``engines/sql``, in order."""
    files = resources.files(__package__).joinpath("sql", folder).iterdir()
    names = sorted(file.name for file in files if file.name[:4].isdigit())
    return tuple(_read(f"{folder}/{name}") for name in names)


def _read(path: str) -> str:
    return resources.files(__package__).joinpath("sql", *path.split("/")).read_text("utf-8")
