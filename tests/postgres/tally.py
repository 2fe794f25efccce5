"""An app whose one task notes each of its runs in a file, for workers in processes of their own."""

from __future__ import annotations

import os

from penstock import Penstock, current

app = Penstock(os.environ["SHOP_URL"])


@app.task
async def note() -> None:
    """Append who runs, the how manieth time; short appends are not mixed up."""
    context = current()
    line = f"{context.id} {context.attempt}\n"
    file = os.open(f"{os.environ['SHOP_PLACE']}/tally", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
