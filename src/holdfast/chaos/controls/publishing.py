"""Defects of publishing: acknowledged and not there, there twice, or too much of it (I1, I2, I17)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from holdfast.chaos.controls.control import Control
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.chaos.weakened import Weakened, maker
from holdfast.model.errors import IdConflict, Overloaded
from holdfast.model.event import Event, Receipt


class Hasty(Weakened):
    """Acknowledges before it commits, and then never commits."""

    async def publish(self, channel: str, events: Sequence[Event], **_: Any) -> list[Receipt]:
        [first] = await self.inner.publish(f"{channel}.elsewhere", [Event(b"{}", "somewhere")])
        return [Receipt(event.id, first.position) for event in events]


async def _one_event(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Hasty)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, {"n": 1}, id="e")
    return await rig.broken(drained=False)


class Forgetful(Weakened):
    """Publishes every repeat as an event of its own."""

    sources = count(1)

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        source = f"turn-{next(self.sources)}"
        return await self.inner.publish(channel, [each._replace(source=source) for each in events], **options)


async def _repeated(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Forgetful)) as bus:
        for _ in range(2):
            await bus.publish(CHANNEL, {"n": 1}, id="twice")
    return await rig.broken()


class Gullible(Weakened):
    """Takes whatever has a known id for a repeat, without looking at its content."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.known: dict[str, Receipt] = {}

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        fresh = [event for event in events if event.id not in self.known]
        receipts = await self.inner.publish(channel, fresh, **options) if fresh else []
        self.known.update({receipt.id: receipt for receipt in receipts})
        return [self.known[event.id] for event in events]


async def _changed(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Gullible)) as bus:
        for number in range(2):
            with contextlib.suppress(IdConflict):
                await bus.publish(CHANNEL, {"n": number}, id="same")
    return await rig.broken()


class Boundless(Weakened):
    """Publishes to a consumer that is full."""

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        known = await self.inner.consumers(channel)
        for each in known:
            await self.inner.subscribe(channel, each.name, replace(each.policy, max_depth=None))
        receipts = await self.inner.publish(channel, events, **options)
        for each in known:
            await self.inner.subscribe(channel, each.name, each.policy)
        return receipts


async def _nobody_works(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Boundless)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, max_depth=3)
        for number in range(6):
            with contextlib.suppress(Overloaded):
                await bus.publish(CHANNEL, {"n": number}, id=f"e-{number}")
    return await rig.broken(drained=False)


CONTROLS = [
    Control("hasty-ack", "A publish is acknowledged before it is committed.", "I1", _one_event),
    Control("forgotten-id", "A repeated publish does not carry its idempotency key.", "I2", _repeated),
    Control("other-content", "The same id with other content counts as a repeat.", "I2", _changed),
    Control("boundless", "A full consumer goes on getting jobs.", "I17", _nobody_works),
]
