"""Positive controls: rounds beside a backend with a defect of the kind that the pairs are there to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from round_state import Kind
from rounds import SIDES, Round, Task, arena

from holdfast.model.event import Event, Receipt
from holdfast.model.job import Job
from holdfast_chaos.faulty_backend import WrappedNoun, faulty
from holdfast_chaos.final_state import ServerUnderTest

STORE = "redis"
PLAIN = Kind(ordered=False, bounded=False, bulk=False)


class KeepsLeases(WrappedNoun, noun="leases"):
    async def claim(self, *arguments: Any) -> list[Job]:
        """Leased in the store, and not handed out."""
        return (await self.inner.leases.claim(*arguments))[1:]


class RepeatsLeases(WrappedNoun, noun="leases"):
    before: Sequence[Job] = ()

    async def claim(self, *arguments: Any) -> list[Job]:
        """What was handed out comes again."""
        repeated, self.before = self.before, await self.inner.leases.claim(*arguments)
        return [*repeated, *self.before]


class AcceptsEverything(WrappedNoun, noun="leases"):
    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """A stale answer is told to be accepted."""
        await self.inner.leases.complete(jobs)
        return [True] * len(jobs)


class LosesEvents(WrappedNoun, noun="log"):
    async def publish(self, channel: str, events: Sequence[Event], **options: datetime) -> list[Receipt]:
        """Acknowledged, and not there."""
        return [Receipt(event.id, "ffff-0000000000000001-0000000000000001") for event in events]


class Breaks(WrappedNoun, noun="leases"):
    async def extend(self, *_: Any) -> list[bool]:
        """An error that no contract knows."""
        raise KeyError("jobs_pkey")


class FaultySide(Task):
    """A side whose backend has a defect."""

    def __init__(self, defect: type[WrappedNoun] | None) -> None:
        self._defect = defect

    async def open(self, url: str) -> None:
        await super().open(url)
        if self._defect:
            self.backend = faulty(self.backend, self._defect)


@pytest.mark.parametrize(
    ("first", "second", "defect", "invariant"),
    [
        ("claim", "claim", KeepsLeases, "I15"),
        ("claim", "pause", RepeatsLeases, "I6"),
        ("complete", "requeue", AcceptsEverything, "I4"),
        ("publish_one", "claim", LosesEvents, "I1"),
        ("extend", "claim", Breaks, "I20"),
    ],
)
async def test_a_defect_is_found_and_its_sound_twin_is_not(
    server: Callable[[str], ServerUnderTest],
    first: str,
    second: str,
    defect: type[WrappedNoun],
    invariant: str,
) -> None:
    for broken in (defect, None):
        sides = [FaultySide(broken) for _ in range(2 * SIDES)]
        async with arena(STORE, server(STORE), sides) as ground:
            found = await ground.play(Round(first, second, PLAIN), seed=1)
        assert (invariant in {violation.invariant for violation in found}) == (broken is not None), found
        assert broken is not None or not found
