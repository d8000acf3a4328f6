"""The shop of `holdfast up --demo`: what it publishes, and its handlers, which fail now and then."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.config.load import FILE
from holdfast.embedded import files
from holdfast.model.errors import Terminal, Transient
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast.wiring import home

if TYPE_CHECKING:
    from prometheus_client.core import Metric


ORDERS, PAYMENTS = "gbe.events.shop.orders", "gbe.events.shop.payments"
USERS, CHANGES = "gbe.events.shop.users", "gbe.events.shop.changes"
QUIET, BUSY, WAVE = 2.0, 6.0, 120.0
"""Events a second when little and when much is going on, and the seconds from one rush to the next."""


class ShopEvent(NamedTuple):
    """An event and its channel."""

    channel: str
    event: Event


def rate(seconds: float) -> float:
    """How many events a second there are, so long after the opening: a slow wave."""
    return QUIET + (BUSY - QUIET) * (1 - math.cos(2 * math.pi * seconds / WAVE)) / 2


def next_event(chance: random.Random) -> ShopEvent:
    """What happens next. Ids are fresh: a shop that opens again has other events."""
    [channel] = chance.choices(list(_KINDS), [kind.share for kind in _KINDS.values()])
    customer = f"customer-{chance.randrange(1, 200)}"
    kind = _KINDS[channel]
    event_id = f"{kind.type.partition('.')[0]}-{chance.getrandbits(48):012x}"
    return ShopEvent(channel, Event(kind.data(chance, customer), event_id, type=kind.type, key=customer))


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


# They fail as handlers do: a slow bank, a bug, bad data, a dead server.
handlers = App()
_chance = random.Random()  # noqa: S311 - no secret


@handlers.handler(ORDERS, "billing", max_attempts=5, lease="30s", backoff=["1s", "5s", "20s"])
async def bill(event: Event, job: Job) -> None:
    """The bank is away now and then; who has no credit gets none."""
    await _take_time()
    if event.json()["credit"] == "none":
        raise Terminal(f"the card of {event.json()['customer']} was declined")
    if job.attempt == 1 and _chance.random() < 0.05:
        raise Transient("the bank did not answer within 2 s")


@handlers.handler(ORDERS, "shipping", max_attempts=3, lease="30s", backoff=["1s", "3s"])
async def ship(event: Event) -> None:
    """A bug that every shop knows: the field is always there, until it is not."""
    await _take_time()
    event.json()["address"]["postcode"]


@handlers.handler(PAYMENTS, "ledger", max_attempts=3, lease="30s", backoff=["1s", "3s"])
async def book(event: Event) -> None:
    """Amounts are numbers, most of the time."""
    await _take_time()
    float(event.json()["amount"])


@handlers.handler(USERS, "mailer", max_attempts=4, lease="30s", backoff=["1s", "2s", "4s"])
async def welcome(event: Event) -> None:
    """A provider whose server refuses us."""
    await _take_time()
    if event.json().get("email", "").endswith("@mail.invalid"):
        raise ConnectionRefusedError("mail.invalid:25 refused the connection")


@handlers.handler(CHANGES, "compliance", max_attempts=3, lease="30s")
async def note(event: Event) -> None:
    """Nothing ever goes wrong here."""
    await _take_time()


async def _take_time() -> None:
    await asyncio.sleep(_chance.uniform(0.02, 0.2))


class ShopService:
    """Publishes a few events a second and works on them, in this process."""

    name = "traffic"

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._chance = random.Random()  # noqa: S311 - no secret

    async def run(self) -> None:
        """Until cancelled; then what the handlers have in hand is finished."""
        stop = asyncio.Event()
        working = asyncio.create_task(handlers.run(self._bus, stop=stop, grace="5s"))
        publishing = asyncio.create_task(self._publish())
        try:
            await asyncio.wait((working, publishing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            publishing.cancel()
            stop.set()
            await asyncio.gather(publishing, return_exceptions=True)
            await working
        await publishing

    async def _publish(self) -> None:
        opened = time.monotonic()
        while True:
            channel, event = next_event(self._chance)
            await self._bus.publish_many(channel, [event])
            await asyncio.sleep(self._chance.expovariate(rate(time.monotonic() - opened)))

    def status(self) -> str:
        """The same all day."""
        return "a small shop is open"

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own: the bus counts."""
        yield from ()


def demo_config(given: Path | None) -> Path | None:
    """The configuration that holds: the one given, else the demo's own, written into `.holdfast/`."""
    if given is not None or os.environ.get(FILE):
        return given
    file = home() / "demo.yaml"
    files.write_private(file, resources.files("holdfast.cli.demo").joinpath("holdfast.yaml").read_text())
    return file
