"""What the processes of a run have seen, one line per fact, in files that survive any of them."""

from __future__ import annotations

import os
from pathlib import Path


def note(kind: str, *words: object) -> None:
    """Append one line to the notes of a kind; the lines of several processes are never mixed."""
    line = " ".join(map(str, words)) + "\n"
    path = f"{os.environ['CHAOS_PLACE']}/{kind}.notes"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def notes(place: Path, kind: str) -> list[list[str]]:
    """The words of every line that was noted of a kind."""
    try:
        text = (place / f"{kind}.notes").read_text()
    except FileNotFoundError:
        return []
    return [line.split() for line in text.splitlines()]
