"""kill -9 of whoever moves dead letters in chunks, or removes a consumer: the counts stay exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadFilter, DeadLetter
from holdfast.model.decide import describe
from holdfast.model.errors import Outdated
from holdfast.model.job import Burial, Reason
from holdfast.wiring import backend
from holdfast_chaos.checks.jobs import miscounted, misplaced
from holdfast_chaos.history import of
from holdfast_chaos.rig import CONSUMER, Process, Rig
from kit import MINUTE, claim, publish, subscribe

DEAD, DONE, CHUNK = 30, 4, 5
PATCH = b'{"patched": true}'


@asynccontextmanager
async def opened(rig: Rig) -> AsyncIterator[Backend]:
    """A backend on the store."""
    store = backend(rig.url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def mover(rig: Rig, verb: str, failpoints: str = "") -> Process:
    return rig.start("deadletters", failpoints, consumer=CONSUMER, verb=verb, chunk=CHUNK)


async def fill(rig: Rig) -> None:
    """Dead letters for two reasons with three fingerprints, and a few jobs that are done."""
    async with opened(rig) as store:
        await subscribe(store)
        await publish(store, *(f"e-{n}" for n in range(DEAD + DONE)))
        jobs = await claim(store, DEAD + DONE)
        burials = [
            Burial(
                job, (Reason.TERMINAL, Reason.MAX_ATTEMPTS)[n % 2], describe(f"error of kind {'abc'[n % 3]}")
            )
            for n, job in enumerate(jobs[:DEAD])
        ]
        assert all(await store.leases.bury(burials))
        assert all(await store.leases.complete(jobs[DEAD:]))


async def listed(store: Backend) -> list[DeadLetter]:
    page = await store.deadletters.page(DeadFilter(), None, 1000)
    assert page.after is None
    return page.letters


async def check(rig: Rig, dead: int) -> None:
    """I3: the counts, by reason and by fingerprint, are those of the list, and of the store's own records."""
    async with opened(rig) as store:
        letters = await listed(store)
        assert len(letters) == dead
        counts = {each.reason: each.count for each in await store.deadletters.counts()}
        assert counts == Counter(letter.record.reason for letter in letters)
        clusters = {
            each.fingerprint: each.count for each in await store.deadletters.clusters(None, None, 100)
        }
        assert clusters == Counter(letter.fingerprint for letter in letters)
        lock = await store.locks.acquire("recount", "judge", MINUTE)
        assert lock is not None
        assert await store.deadletters.recount(False, lock) == []
        await store.locks.release(lock)
    evidence = await rig.final_state()
    assert [*miscounted(evidence), *misplaced(evidence)] == []


@pytest.mark.dealt
@pytest.mark.parametrize("verb", ["revive", "purge"])
async def test_a_chunk_is_moved_whole_or_not_at_all(rig: Rig, verb: str) -> None:
    await fill(rig)
    await check(rig, DEAD)
    before = {row.job: row.token for row in await rig.rows()}
    for turn in range(1, 3):
        await mover(rig, verb, f"dead.after_{verb}=kill:1").killed()
        await check(rig, DEAD - turn * 2 * CHUNK)
    assert await mover(rig, verb).ended() == 0
    await check(rig, 0)
    rows = [row for row in await rig.rows() if row.state != "done"]
    assert {row.state for row in rows} == {"ready" if verb == "revive" else "purged"}
    assert len(rows) == DEAD
    raised = 1 if verb == "revive" else 0
    assert {row.token - before[row.job] for row in rows} == {raised}, "each was moved once"
    if verb == "revive":
        async with opened(rig) as store:
            assert {job.event.data for job in await claim(store)} == {PATCH}


@pytest.mark.dealt
@pytest.mark.parametrize("point", ["after_mark", "after_step"])
async def test_a_removal_goes_on_where_it_stood(rig: Rig, point: str) -> None:
    await fill(rig)
    await mover(rig, "remove", f"remove.{point}=kill:1").killed()
    async with opened(rig) as store:
        assert await store.channels.consumers() == []
        assert await store.deadletters.counts() == []
        assert await listed(store) == []
        with pytest.raises(Outdated, match="wait"):
            await subscribe(store)
        heir = mover(rig, "remove")
        assert await heir.ended() == 0
        assert of(rig.calls(heir.name), "moved"), "there was something left to do"
        await subscribe(store)
        assert await claim(store) == []
    assert await rig.rows() == []
    await check(rig, 0)
