"""The business: what a small shop publishes, and how much of it, as a function of chance and time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.model.event import Event

ORDERS, PAYMENTS = "gbe.events.shop.orders", "gbe.events.shop.payments"
USERS, CHANGES = "gbe.events.shop.users", "gbe.events.shop.changes"
QUIET, BUSY, WAVE = 2.0, 6.0, 120.0
"""Events a second when little and when much is going on, and the seconds from one rush to the next."""


class Happening(NamedTuple):
    """An event and its channel."""

    channel: str
    event: Event


def rate(seconds: float) -> float:
    """How many events a second there are, so long after the opening: a slow wave."""
    return QUIET + (BUSY - QUIET) * (1 - math.cos(2 * math.pi * seconds / WAVE)) / 2


def happening(chance: random.Random) -> Happening:
    """What happens next. Ids are fresh: a shop that opens again has other events."""
    [channel] = chance.choices(list(_KINDS), [kind.share for kind in _KINDS.values()])
    customer = f"customer-{chance.randrange(1, 200)}"
    kind = _KINDS[channel]
    event_id = f"{kind.type.partition('.')[0]}-{chance.getrandbits(48):012x}"
    return Happening(channel, Event(kind.data(chance, customer), event_id, type=kind.type, key=customer))


def _order(chance: random.Random, customer: str) -> dict[str, Any]:
    """Few orders lack the postcode, and fewer the customer's credit."""
    goods = {name: chance.randrange(1, 4) for name in chance.sample(sorted(_PRICES), chance.randrange(1, 4))}
    postcode = {} if chance.random() < 0.02 else {"postcode": f"{chance.randrange(10_000, 99_999)}"}
    return {
        "customer": customer,
        "goods": goods,
        "total": round(sum(_PRICES[name] * many for name, many in goods.items()), 2),
        "country": chance.choice(("DE", "FR", "IT", "NL", "PL", "SE")),
        "address": postcode,
        "credit": "none" if chance.random() < 0.01 else "good",
    }


def _payment(chance: random.Random, customer: str) -> dict[str, Any]:
    """Few amounts are written with a comma, as a partner's bank does."""
    amount = f"{chance.uniform(3, 300):.2f}"
    comma = chance.random() < 0.02
    bank = chance.choice(("north", "south", "harbour"))
    return {"customer": customer, "amount": amount.replace(".", ",") if comma else amount, "bank": bank}


def _user(chance: random.Random, customer: str) -> dict[str, Any]:
    """Few leave no address, and mail to one provider is refused."""
    provider = "mail.invalid" if chance.random() < 0.06 else "mail.example"
    email = {} if chance.random() < 0.05 else {"email": f"{customer}@{provider}"}
    return {"user": customer, "plan": chance.choice(("free", "plus")), **email}


def _change(chance: random.Random, customer: str) -> dict[str, Any]:
    return {"who": customer, "what": chance.choice(("address", "password", "consent"))}


class _Kind(NamedTuple):
    """A kind of event: its type, its share of all, and how its data is made."""

    type: str
    share: int
    data: Callable[[random.Random, str], dict[str, Any]]


_PRICES = {"tea": 4.9, "bread": 3.2, "honey": 8.9, "rope": 15.0, "lamp": 49.0, "chair": 129.0}
_KINDS = {
    ORDERS: _Kind("order.placed", 45, _order),
    PAYMENTS: _Kind("payment.settled", 35, _payment),
    USERS: _Kind("user.joined", 10, _user),
    CHANGES: _Kind("profile.changed", 10, _change),
}
