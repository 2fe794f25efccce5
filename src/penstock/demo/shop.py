"""The application of the demo: the tasks of a little shop, on the store that PENSTOCK_URL names."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from pathlib import Path
from typing import Final

from penstock import Context, Fixed, Penstock
from penstock.demo.picture import Picture

app: Final = Penstock()

BAND: Final = 6
"""Rows of a picture that are drawn in one go."""


def luck(*about: object) -> random.Random:
    """Chance that is the same in every run of the demo."""
    return random.Random(repr(about))


@app.task(name="mail.send", queue="mail")
async def send(to: str, subject: str) -> str:
    """Send a mail, through a server that takes its time."""
    await asyncio.sleep(luck(to, subject).uniform(0.3, 1.3))
    return "sent"


@app.task(name="picture.shrink", queue="pictures")
def shrink(photo: str, ctx: Context) -> str:
    """Draw a small picture band by band, from a slow disk, and say how far it has come."""
    picture = Picture.of(photo)
    rows: list[bytes] = []
    for first in range(0, picture.height, BAND):
        rows += (picture.row(number) for number in range(first, first + BAND))
        ctx.progress(len(rows) / picture.height, f"{photo}, row {len(rows)} of {picture.height}")
        threading.Event().wait(luck(photo, first).uniform(0.02, 0.12))
    folder = Path(app.url.location).parent / "pictures"
    folder.mkdir(exist_ok=True)
    (folder / f"{photo}.png").write_bytes(picture.png(rows))
    return f"{photo}.png"


@app.task(
    name="payment.collect",
    queue="payments",
    priority="high",
    key=lambda order, customer: customer,
    retries=Fixed("1s", retries=6),
)
async def collect(order: int, customer: str, ctx: Context) -> str:
    """Ask the payment service, which does not answer every time."""
    await asyncio.sleep(luck(order, ctx.attempt).uniform(0.2, 0.7))
    if ctx.failures < 4 and luck(order, ctx.failures, "answers").random() < 0.4:
        raise ConnectionError("the payment service does not answer")
    return "paid"


@app.task(name="order.ship", queue="orders", retries=[1, 2])
async def ship(order: int) -> None:
    """Fail whenever it is tried: a person has to correct the order."""
    await asyncio.sleep(0.3)
    raise ValueError(f"order {order} has no address")


@app.task(name="invoice.render", queue="orders")
def render(order: int) -> None:
    """Take the whole process down, as a broken library would."""
    threading.Event().wait(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="customer.remind", queue="mail")
async def remind(customer: str) -> str:
    """Remind a customer of a full basket, later."""
    return "reminded"
