"""Holdfast's worker with three kinds of handlers on the same orders: the event, its JSON, a model."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
from pydantic import BaseModel

import holdfast

from . import OnEvent
from .holdfast_ import CHANNEL, CONSUMER, LEASE, Holdfast


class Line(BaseModel):
    sku: str
    price: float
    count: int = 1


class Order(BaseModel):
    id: str
    total: float
    customer: str
    paid: bool
    lines: list[Line]
    stamp: str


LINES = [{"sku": f"sku-{number}", "price": 9.5, "count": 2} for number in range(2)]
FIELDS: dict[str, Any] = {"id": "o-1", "total": 38.0, "customer": "c-7", "paid": True, "lines": LINES}


class Event(Holdfast):
    """The handler takes the event, and does not look into its data."""

    name: ClassVar[str] = "event"

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        orders = [orjson.dumps(FIELDS | {"stamp": payload.decode()}) for payload in payloads]
        await super().publish_bulk(orders)

    async def work(self, on_event: OnEvent) -> None:
        app = holdfast.App()
        app.handler(CHANNEL, CONSUMER, lease=LEASE)(self.handler(on_event))
        async with holdfast.connect(self.url) as bus:
            await app.run(bus)

    def handler(self, on_event: OnEvent) -> Any:
        async def noop(event: holdfast.Event) -> None:
            on_event(event.data)

        return noop


class Json(Event):
    """The handler takes the event and reads its JSON, unchecked."""

    name: ClassVar[str] = "json"

    def handler(self, on_event: OnEvent) -> Any:
        async def noop(event: holdfast.Event) -> None:
            on_event(event.json()["stamp"])

        return noop


class Typed(Event):
    """The handler takes an order."""

    name: ClassVar[str] = "typed"

    def handler(self, on_event: OnEvent) -> Any:
        async def noop(order: Order) -> None:
            on_event(order.stamp)

        return noop
