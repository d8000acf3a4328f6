"""The demo's orders, mostly good ones, and what the demo and its worker processes agree on."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from holdfast.model.event import Event

CHANNEL: Final = "HOLDFAST_DEMO_CHANNEL"
"""The environment variable that names the channel of the orders."""
CONSUMER: Final = "billing"
POLICY: Final[dict[str, Any]] = {
    "lease": "2s",
    "max_attempts": 3,
    "max_abandonments": 5,
    "backoff": ["300ms", "1s"],
}
BOMB_POLICY: Final[dict[str, Any]] = {"lease": "1s", "max_abandonments": 2}


def bomb_channel(channel: str) -> str:
    """The channel for orders that kill their worker, beside that of the others."""
    return f"{channel}.bombs"


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
