"""A day in the shop: what its customers cause, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

PEOPLE: Final = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "joe", "kim", "leo")
EVERY: Final = 0.8
"""Seconds from one order to the next."""
ORDERS: Final = 14
"""Orders of a day; a shop that stays has no end of them."""
FIRST_ORDER: Final = 1001
UNSHIPPABLE: Final = 1013
UNPRINTABLE: Final = 1017


@dataclass(frozen=True, slots=True)
class Wish:
    """A job to be enqueued."""

    task: str
    args: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def opening() -> list[Wish]:
    """What is there when the shop opens."""
    return [
        *(_mail(f"{name}@example.com", "News in November") for name in (*PEOPLE, *PEOPLE[::-1])),
        *(Wish("picture.shrink", {"photo": f"photo-{number}"}) for number in range(1, 6)),
        *(_payment(order) for order in range(FIRST_ORDER - 6, FIRST_ORDER)),
        Wish("customer.remind", {"customer": "zoe"}, {"delay": "12s"}),
        Wish("order.ship", {"order": UNSHIPPABLE}),
    ]


def orders(*, without_end: bool) -> Iterator[list[Wish]]:
    """What each order causes, one after the other."""
    for number in count() if without_end else range(ORDERS):
        order = FIRST_ORDER + number
        caused = [_payment(order), _mail(f"{_customer(order)}@example.com", f"Order {order}")]
        if number % 3 == 0:
            caused.append(Wish("picture.shrink", {"photo": f"order-{order}"}))
        if number == 2:
            caused.append(Wish("invoice.render", {"order": UNPRINTABLE}))
        if number % 10 == 9:
            soon = {"delay": "5s"}
            caused.append(Wish("customer.remind", {"customer": _customer(order)}, soon))
        yield caused


def _mail(to: str, subject: str) -> Wish:
    return Wish("mail.send", {"to": to, "subject": subject})


def _payment(order: int) -> Wish:
    return Wish("payment.collect", {"order": order, "customer": _customer(order)})


def _customer(order: int) -> str:
    return PEOPLE[order % len(PEOPLE)]
