"""Defects of dead letters: buried in two steps, with a kill in between (I3, I4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import failpoints
from holdfast.model.job import Burial, Failure, Reason
from holdfast_chaos.controls import mutations
from holdfast_chaos.controls.control import Control, Play
from holdfast_chaos.faulty_backend import WrappedNoun, maker
from holdfast_chaos.history import History
from holdfast_chaos.recorder import recorded
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig

POINT = "worker.after_ack"
"""Between the two steps; without the defect, after the only one."""


class CountsLater(WrappedNoun, noun="leases"):
    """Buries in one transaction and counts in the next."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        answers = await self.inner.leases.bury(burials)
        await mutations.mutate(self.inner.url, "a dead letter goes uncounted")  # so far the first one
        failpoints.hit(POINT)
        lock = await self.inner.locks.acquire("recount", "control", timedelta(minutes=1))
        if lock is None:
            raise RuntimeError("nobody else recounts here, and yet the lock was not to be had")
        await self.inner.deadletters.recount(True, lock)
        return answers


class WritesLater(WrappedNoun, noun="leases"):
    """Takes the job off the queue, and then writes the dead letter into a channel of its own."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        answers = await self.inner.leases.complete([each.job for each in burials])
        failpoints.hit(POINT)
        await self.inner.log.publish(f"{CHANNEL}.dead", [each.job.event for each in burials])
        return answers


DEFECTS = (CountsLater, WritesLater)


async def bury(spec: dict[str, Any]) -> None:
    """Lease everything and give it up. Specification: url, history, channel, defect (or none)."""
    make = maker(not spec["defect"], *(each for each in DEFECTS if each.__name__ == spec["defect"]))
    store = recorded(make(spec["url"]), History(Path(spec["history"])))
    await store.open()
    jobs = await store.leases.claim(spec["channel"], CONSUMER, 10, "control")
    await store.leases.bury([Burial(job, Reason.TERMINAL, Failure("no")) for job in jobs])
    failpoints.hit(POINT)


def _killed_while_burying(defect: type[WrappedNoun]) -> Play:
    async def play(rig: Rig, sound: bool) -> set[str]:
        async with rig.bus("setup") as bus:
            await bus.subscribe(CHANNEL, CONSUMER)
            await bus.publish(CHANNEL, {"n": 1}, id="e")
        name = "" if sound else defect.__name__
        await rig.start("control", f"{POINT}=kill", part="deadletters.bury", defect=name).killed()
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
