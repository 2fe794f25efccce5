"""A worker process of the shop: ``python -m processes.serve CONCURRENCY LEASE``."""

from __future__ import annotations

import logging
import sys

from processes.shop import app

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    concurrency, lease = int(sys.argv[1]), float(sys.argv[2])
    app.run_worker(concurrency=concurrency, threads=4, lease=lease, drain=20)
