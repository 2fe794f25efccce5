"""``python .ci/riddle_words.py FOLDER``: exit code 1 if code speaks of an agent without naming it.

"Whoever sleeps is told" leaves open what sleeps: name the worker, the caller, the leader or the
connection. Comments, docstrings and SQL are read; text that users read is not.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

BANNED = ("whoever", "somebody", "nobody", "who sleeps", "who comes", "whatever comes")
# A phrase may go on in the next line of a comment.
PATTERN = re.compile(
    r"\b(?:" + "|".join(word.replace(" ", r"[\s#-]+") for word in BANNED) + r")\b", re.IGNORECASE
)


def found(path: Path) -> Iterator[tuple[int, str]]:
    """The line of each banned word or phrase in a file, and what it is."""
    text = path.read_text()
    for start, prose in _prose(text) if path.suffix == ".py" else [(1, text)]:
        for match in PATTERN.finditer(prose):
            yield start + prose.count("\n", 0, match.start()), " ".join(match[0].split())


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Comments, those of adjacent lines together, and strings that are statements: docstrings."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node.lineno, ast.get_source_segment(source, node) or ""
    comments = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    block: list[str] = []
    for index, (line, comment) in enumerate(comments):
        block.append(comment)
        if index + 1 == len(comments) or comments[index + 1][0] != line + 1:
            yield line - len(block) + 1, "\n".join(block)
            block = []


def main(folder: str) -> int:
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix in (".py", ".sql"))
    places = [f"{path}:{line}: {word!r}" for path in paths for line, word in found(path)]
    if not places:
        return 0
    print("\n".join(places))
    print("name the agent: the worker, the caller, the leader, the connection")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
