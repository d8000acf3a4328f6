"""Two sweepers at once, and one that was stopped past its lock: one of them works, nothing is done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sweeping import (
    AGE,
    ARCHIVER,
    AUDIT,
    DEAD,
    LEASE,
    PAGE,
    STUCK,
    TTL,
    archived,
    left,
    mess,
    published,
    removed,
    reports,
    store_of,
    summed,
    sweep,
    told,
)

from holdfast.contracts import Backend, Reading
from holdfast.upkeep.announcements import Swept
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast_chaos.faulty_backend import WrappedNoun, maker
from holdfast_chaos.history import of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Process, Rig
from kit import until

TURNS, EACH = 3, 2
"""How often there is something new to sweep, and how many reports each sweeper gives in between."""


async def both_swept(rig: Rig, sweepers: Sequence[Process]) -> None:
    """Wait until each of them has swept a few times more, and so has seen everything that is there now."""

    def count() -> list[int]:
        return [len(of(rig.calls(each.name), "swept")) for each in sweepers]

    before = count()

    async def done() -> bool:
        return all(now >= then + EACH for now, then in zip(count(), before, strict=True))

    await until(done, 40)


@pytest.mark.dealt
async def test_two_sweepers_remove_everything_once_and_nothing_that_is_needed(rig: Rig) -> None:
    enough = rig.folder / "enough"
    async with rig.bus("setup") as bus:
        backend = store_of(bus)
        await mess(bus, "first")
        await archived(rig, backend)
        sweepers = [sweep(rig, until=str(enough)) for _ in range(2)]
        options = {"channel": AUDIT, "consumer": ARCHIVER, "until": str(enough)}
        follower = rig.start("follower", "", size=PAGE, **options)
        await both_swept(rig, sweepers)
        for turn in range(TURNS):
            await mess(bus, str(turn))
            await both_swept(rig, sweepers)
        enough.touch()
        assert [await each.ended() for each in (*sweepers, follower)] == [0, 0, 0]
        gone = {}
        for channel in (AUDIT, CHANNEL):
            gone[channel] = len(published(rig.calls(), channel)) - len(await left(backend, channel))
        retried = await told(backend, "retry")
        system = await told(backend, "sweep")

    calls = rig.calls()
    found = reports(calls)
    assert of(calls, "busy"), "they never met"
    assert of(calls, "lost") == []
    assert summed(found, "trimmed") == removed(calls) == gone
    assert gone[AUDIT] >= PAGE
    assert summed(found, "purged") == {f"{CHANNEL}/{CONSUMER}": (TURNS + 1) * DEAD}
    assert sum(report["retried"] for report in found) == (TURNS + 1) * STUCK == len(retried)
    assert sorted(system, key=token) == sorted(found, key=token)
    assert len({token(report) for report in found}) == len(found), "no two sweeps under one token"
    assert [token(report) for report in system] == sorted(map(token, system)), (
        "told in the order of the locks"
    )
    assert await rig.violations(drained=False) == []


def token(report: dict[str, Any]) -> int:
    number: int = report["token"]
    return number


@pytest.mark.dealt
@pytest.mark.parametrize("point", ["after_lock", "after_stuck", "after_trim", "between_channels"])
async def test_a_sweeper_stopped_past_its_lock_is_refused_and_removes_nothing_more(
    rig: Rig, point: str
) -> None:
    async with rig.bus("setup") as bus:
        backend = store_of(bus)
        await mess(bus, "first")
        await archived(rig, backend)
        slow = sweep(rig, f"sweeper.{point}=stop")
        await slow.stopped_itself()
        await backend.advance(TTL)
        assert await sweep(rig).ended() == 0
        await mess(bus, "second")
        await archived(rig, backend, pages=3)
        before = [await left(backend, channel) for channel in (AUDIT, CHANNEL)]
        assert await slow.continued() == 0
        calls = rig.calls()
        [lost] = of(calls, "lost", process=slow.name)
        assert "LockLost" in lost.items[0]["message"]
        assert [await left(backend, channel) for channel in (AUDIT, CHANNEL)] == before
        assert of(calls, "swept", process=slow.name) == []
        assert len(await told(backend, "sweep")) == 1
        assert Counter(row.state for row in await rig.rows())["dead"] == DEAD, "those of the second mess"
    assert await rig.violations(drained=False) == []


async def swept(backend: Backend) -> Swept | None:
    """One sweep over such a backend."""
    await backend.open()
    report = await Sweeper(backend, Rules(retention={AUDIT: Keep(max_age=AGE)}), "tester").run_once()
    await backend.close()
    return report


class Slow(WrappedNoun, noun="lifecycle"):
    """Time passes while the sweeper looks for what is due."""

    async def due(self, limit: int) -> Reading:
        await self.inner.advance(2 * LEASE)
        return await self.inner.lifecycle.due(limit)


async def test_a_lease_that_ends_while_the_sweeper_looks_is_told_of(rig: Rig) -> None:
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await bus.publish(CHANNEL, {"n": 1}, id="stuck")
        await bus.poll(CHANNEL, CONSUMER)
    report = await swept(maker(False, Slow)(rig.url))
    assert report is not None
    assert report.retried == 1
    backend = rig.recorded("reader")
    await backend.open()
    assert [event["event_id"] for event in await told(backend, "retry")] == ["stuck"]
    await backend.close()
