"""``python -m penstock.demo`` is ``penstock demo``."""

from __future__ import annotations

import sys

from penstock.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "demo")
    main()
