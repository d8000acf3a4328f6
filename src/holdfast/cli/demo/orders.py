"""The demo's orders: mostly good ones, and every sort of trouble."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from holdfast.model.event import Event


class Kind(StrEnum):
    """What will happen to an order in its handler."""

    GOOD = "good"
    FLAKY = "flaky"
    HOPELESS = "hopeless"
    POISON = "poison"
    BOMB = "bomb"


def kind_of(number: int) -> Kind:
    """Of 200 orders five fail once, one fails always, and one cannot be helped."""
    if number % 40 == 7:
        return Kind.FLAKY
    match number % 200:
        case 13:
            return Kind.HOPELESS
        case 113:
            return Kind.POISON
        case _:
            return Kind.GOOD


def order(number: int, kind: Kind) -> Event:
    """The event of one order, under an id of its own."""
    data = {"number": number, "kind": kind, "total": number % 97 + 1}
    return Event(data, id=f"order-{number:06d}", type="order.placed", key=f"customer-{number % 50}")


def orders(first: int, count: int) -> Iterator[Event]:
    """A run of orders."""
    return (order(number, kind_of(number)) for number in range(first, first + count))
