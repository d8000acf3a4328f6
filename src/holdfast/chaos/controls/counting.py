"""Defects of burials: a dead letter in two steps, with a kill in between (I3, I4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import failpoints
from holdfast.chaos.controls import sabotage
from holdfast.chaos.controls.control import Control, Play
from holdfast.chaos.history import History
from holdfast.chaos.recorder import Recorded
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.chaos.weakened import Weakened, maker
from holdfast.model.job import Burial, Failure, Reason

POINT = "worker.after_ack"
"""Between the two steps; without the defect, after the only one."""


class CountsLater(Weakened):
    """Buries in one transaction and counts in the next."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        answers = await self.inner.bury(burials)
        await sabotage.commit(self.inner.url, "a dead letter goes uncounted")  # so far the first one
        failpoints.hit("worker.after_ack")
        lock = await self.inner.lock("recount", "control", timedelta(minutes=1))
        if lock is None:
            raise RuntimeError("nobody else recounts here, and yet the lock was not to be had")
        await self.inner.recount_dead(True, lock)
        return answers


class WritesLater(Weakened):
    """Takes the job off the queue, and then writes the dead letter into a channel of its own."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        answers = await self.inner.complete([each.job for each in burials])
        failpoints.hit("worker.after_ack")
        await self.inner.publish(f"{CHANNEL}.dead", [each.job.event for each in burials])
        return answers


DEFECTS = {each.__name__: each for each in (CountsLater, WritesLater)}


async def bury(spec: dict[str, Any]) -> None:
    """Lease everything and give it up. Specification: url, history, channel, defect (or none)."""
    make = maker(not spec["defect"], DEFECTS.get(spec["defect"], Weakened))
    watched: Any = Recorded(make(spec["url"]), History(Path(spec["history"])))
    await watched.open()
    jobs = await watched.claim(spec["channel"], CONSUMER, 10, "undertaker")
    await watched.bury([Burial(job, Reason.TERMINAL, Failure("no")) for job in jobs])
    failpoints.hit("worker.after_ack")


def _killed_while_burying(defect: type[Weakened]) -> Play:
    async def play(rig: Rig, sound: bool) -> set[str]:
        async with rig.bus("setup") as bus:
            await bus.subscribe(CHANNEL, CONSUMER)
            await bus.publish(CHANNEL, {"n": 1}, id="e")
        name = "" if sound else defect.__name__
        await rig.start("accused", f"{POINT}=kill", part="counting.bury", defect=name).killed()
        return await rig.broken()

    return play


CONTROLS = [
    Control(
        "counts-apart",
        "Dead letters are counted outside of the transaction that buries them.",
        "I3",
        _killed_while_burying(CountsLater),
    ),
    Control(
        "burial-in-two-steps",
        "A job leaves the queue before its dead letter is written.",
        "I4",
        _killed_while_burying(WritesLater),
    ),
]
