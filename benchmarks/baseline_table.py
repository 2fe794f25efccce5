"""``python -m benchmarks.baseline_table``: tables for README.md, read from ``baseline/*.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import number, times

BASELINE = Path(__file__).parent / "baseline"


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """The medians of a run as a Markdown table: one row per figure, one column per contender."""
    lines = [(name, line) for name, each in found["scenarios"].items() for line in each["figures"]]
    contenders = list(dict.fromkeys(who for _, line in lines for who in line["contenders"]))
    yield f"| scenario | figure | {' | '.join(contenders)} | ratio |"
    yield "|---|---|" + "---|" * (len(contenders) + 1)
    for name, line in lines:
        medians = {who: number(each["median"]) for who, each in line["contenders"].items()}
        cells = " | ".join(medians.get(who, "") for who in contenders)
        figure = f"{line['figure']}, {line['unit']}"
        yield f"| `{name}` | {figure} | {cells} | {times(line['ratio'])} |"


def main() -> None:
    for path in sorted(BASELINE.glob("*.json")):
        found = json.loads(path.read_text())
        about = ", ".join(f"{name} {each}" for name, each in found["machine"].items())
        versions = ", ".join(f"{name} {each}" for name, each in found["versions"].items())
        print(f"\n### `{path.name}`, {found['at'][:10]}\n\n{about}; {versions}.\n")
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
