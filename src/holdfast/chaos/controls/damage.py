"""What is done to a store behind the back of the bus, after honest work on it."""

from __future__ import annotations

from datetime import timedelta

from holdfast.chaos.controls import sabotage
from holdfast.chaos.controls.control import Control, Play
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.model.event import Event

LEASE = timedelta(minutes=5)


async def honest(rig: Rig) -> None:
    """Two jobs done, one dead, one retried and leased again, one still leased."""
    async with rig.bus("honest") as bus:
        await bus.subscribe(CHANNEL, CONSUMER, backoff=["0s"])
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(5)])
        first, second, third, fourth, _ = await bus.poll(CHANNEL, CONSUMER, limit=5)
        await bus.finalize_many([first, second], success=True)
        await bus.finalize(third, success=False, error="no", terminal=True)
        await bus.finalize(fourth, success=False, error="not yet")
        [again] = await bus.poll(CHANNEL, CONSUMER)
        await bus.extend(again, LEASE)


def _then(what: str) -> Play:
    async def play(rig: Rig, sound: bool) -> set[str]:
        await honest(rig)
        if not sound:
            await sabotage.commit(rig.url, what)
        return await rig.broken(drained=False)

    return play


CONTROLS = [
    Control(
        what.partition(" ")[2].replace(" ", "-"),
        f"Behind the back of the bus, {what}.",
        invariant,
        _then(what),
        tuple(store for store, known in sabotage.SABOTAGE.items() if what in known),
    )
    for what, invariant in sabotage.BREAKS.items()
]
