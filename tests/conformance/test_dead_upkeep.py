"""Around dead letters: folding, recounting, names for people, revisions, the latest records, one job."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dead_helpers import bury_all, check_counts, counts, die, listed
from sweeps import HOUR, SWEEPER, locked

import holdfast
from holdfast.contracts import Backend
from holdfast.model.errors import LockLost, Outdated
from holdfast.model.policy import Policy
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, claim_one, complete, fail, publish, record, subscribe

NO_TIME = timedelta(0)
NO_IDS = ("", "0", "-1", "nonsense", "1" * 40, "orders/1", "ü")


# folding and recounting


async def test_folding_changes_no_count(backend: Backend) -> None:
    lock = await locked(backend)
    await subscribe(backend)
    await backend.deadletters.fold(NO_TIME, 0, lock)
    jobs = await die(backend, *"abcd")
    before = await counts(backend)
    fold = await backend.deadletters.fold(NO_TIME, 0, lock)
    assert not fold.bootstrapped, "once in a store's life"
    assert await counts(backend) == before
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id for job in jobs[:3]]) == [True] * 3
    assert await check_counts(backend) == 1
    await backend.deadletters.fold(NO_TIME, 0, lock)
    assert await check_counts(backend) == 1


async def test_counts_that_are_right_have_no_drift(backend: Backend) -> None:
    lock = await locked(backend)
    assert await backend.deadletters.recount(True, lock) == []
    await subscribe(backend)
    jobs = await die(backend, *"abcd")
    for repair in (False, True):
        assert await backend.deadletters.recount(repair, lock) == []
        assert await check_counts(backend) == 4
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id for job in jobs]) == [True] * 4
    assert await backend.deadletters.recount(True, lock) == []
    assert await backend.deadletters.counts() == []


async def test_a_holder_from_the_past_neither_folds_nor_recounts(backend: Backend) -> None:
    # CORRECTIONS 004.5: a lock that expired while the count still ran would count everything twice.
    stale = await locked(backend, "a")
    await subscribe(backend)
    await die(backend, "a")
    await backend.advance(2 * HOUR)
    lock = await locked(backend, "b")
    with pytest.raises(LockLost, match=SWEEPER):
        await backend.deadletters.fold(NO_TIME, 0, stale)
    for repair in (False, True):
        with pytest.raises(LockLost, match=SWEEPER):
            await backend.deadletters.recount(repair, stale)
    await backend.deadletters.fold(NO_TIME, 0, lock)
    assert await check_counts(backend) == 1


async def test_a_recount_is_exact_while_others_move(backend: Backend) -> None:
    lock = await locked(backend)
    await subscribe(backend)
    await die(backend, *(f"e-{n}" for n in range(40)))

    async def move(part: int) -> None:
        for _ in range(8):
            dead = [each.record.id for each in await listed(backend)][part::4]
            await backend.deadletters.revive(CHANNEL, CONSUMER, dead)
            for job in await claim(backend, 10):
                assert await bury(backend, job)

    async def recount() -> None:
        for turn in range(6):
            assert await backend.deadletters.recount(turn % 2 == 0, lock) == []
            await backend.deadletters.fold(NO_TIME, 0, lock)

    await asyncio.gather(*(move(part) for part in range(4)), recount())
    await bury_all(backend, await claim(backend))
    assert await check_counts(backend) == 40


# names for people


@pytest.mark.parametrize("consumer", [None, CONSUMER])
async def test_a_name_for_people_is_any_text_until_it_is_taken_away(
    backend: Backend, consumer: str | None
) -> None:
    await subscribe(backend)

    async def shown() -> str:
        if consumer is None:
            return (await backend.channels.stats(CHANNEL)).display
        return (await backend.channels.consumer(CHANNEL, consumer)).display

    assert await shown() == ""
    for display in ("Payment Service", "Zahlungen ✓ / 'ü' \"x\"", ""):
        await backend.channels.set_display(CHANNEL, consumer, display)
        assert await shown() == display


async def test_only_what_exists_has_a_name_for_people(backend: Backend) -> None:
    await subscribe(backend)
    for channel, consumer in (("nowhere", None), ("nowhere", CONSUMER), (CHANNEL, "nobody")):
        with pytest.raises(holdfast.NotFound, match=consumer or channel):
            await backend.channels.set_display(channel, consumer, "x")
    await backend.channels.set_display(CHANNEL, CONSUMER, "mine")
    assert (await backend.channels.stats(CHANNEL)).display == "", "each its own"
    await backend.channels.set_display(CHANNEL, None, "ours")
    [consumer] = await backend.channels.consumers()
    assert (consumer.display, consumer.channel_display) == ("mine", "ours")
    assert consumer == await backend.channels.consumer(CHANNEL, CONSUMER)


async def test_a_name_for_people_outlives_a_change_of_policy(backend: Backend) -> None:
    await subscribe(backend)
    await backend.channels.set_display(CHANNEL, CONSUMER, "mine")
    assert (await subscribe(backend, max_attempts=7)).display == "mine"


# revisions


async def test_every_change_raises_the_revision(backend: Backend) -> None:
    revisions = [(await subscribe(backend)).revision]
    assert revisions[0] > 0, "0 is that of none"

    async def now() -> None:
        revisions.append((await backend.channels.consumer(CHANNEL, CONSUMER)).revision)

    await subscribe(backend, max_attempts=7)
    await now()
    await backend.channels.set_paused(CHANNEL, CONSUMER, True)
    await now()
    await backend.channels.set_display(CHANNEL, CONSUMER, "x")
    await now()
    assert revisions == sorted(set(revisions)), "it rises"
    [consumer] = await backend.channels.consumers(CHANNEL)
    assert consumer.revision == revisions[-1]
    await subscribe(backend, max_attempts=7)
    await publish(backend, "a")
    assert (await backend.channels.consumer(CHANNEL, CONSUMER)).revision == revisions[-1], (
        "nothing has changed"
    )


async def test_a_change_counts_only_for_the_revision_that_was_read(backend: Backend) -> None:
    async def change(attempts: int, revision: int) -> int:
        policy = Policy.of(max_attempts=attempts)
        return (await backend.channels.subscribe(CHANNEL, CONSUMER, policy, revision=revision)).revision

    with pytest.raises(Outdated, match=CONSUMER):
        await change(3, 1)
    with pytest.raises(holdfast.NotFound):
        await backend.channels.consumer(CHANNEL, CONSUMER)
    first = await change(3, 0)
    with pytest.raises(Outdated, match=CONSUMER):
        await change(4, 0)
    second = await change(5, first)
    for stale in (0, first, second + 1):
        with pytest.raises(Outdated, match=CONSUMER):
            await change(6, stale)
    kept = await backend.channels.consumer(CHANNEL, CONSUMER)
    assert (kept.policy.max_attempts, kept.revision) == (5, second), "a refused change changes nothing"


async def test_a_consumer_made_anew_has_no_revision_of_the_one_before(backend: Backend) -> None:
    async def made() -> list[int]:
        found = [(await subscribe(backend, max_attempts=attempts)).revision for attempts in (2, 3, 4)]
        await backend.channels.set_paused(CHANNEL, CONSUMER, True)
        await backend.channels.set_display(CHANNEL, CONSUMER, "x")
        return [*found, (await backend.channels.consumer(CHANNEL, CONSUMER)).revision]

    before = await made()
    assert (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)).done
    first = (await subscribe(backend)).revision
    assert first > max(before)
    for stale in before:
        with pytest.raises(Outdated, match=CONSUMER):
            await backend.channels.subscribe(CHANNEL, CONSUMER, Policy.of(max_attempts=9), revision=stale)
    assert (await backend.channels.consumer(CHANNEL, CONSUMER)).revision == first


@pytest.mark.parametrize("exists", [False, True])
async def test_of_many_that_change_the_same_revision_one_wins(backend: Backend, exists: bool) -> None:
    revision = (await subscribe(backend)).revision if exists else 0

    async def change(attempts: int) -> int | None:
        try:
            await backend.channels.subscribe(
                CHANNEL, CONSUMER, Policy.of(max_attempts=attempts), revision=revision
            )
        except Outdated:
            return None
        return attempts

    answers = await asyncio.gather(*(change(number) for number in range(11, 17)))
    [winner] = [each for each in answers if each is not None]
    assert (await backend.channels.consumer(CHANNEL, CONSUMER)).policy.max_attempts == winner


# the latest records


async def test_due_records_come_newest_first_where_asked_for(backend: Backend) -> None:
    now = await backend.now()
    prefix = "gbe.state.redrives."
    for number in (3, 1, 5, 2, 4):
        await backend.records.put(f"{prefix}{number}", {}, 0, now - number * MINUTE)
    await backend.records.put(f"{prefix}future", {}, 0, now + 60 * MINUTE)
    await backend.records.put("gbe.state.other.1", {}, 0, now)
    expected = [f"{prefix}{number}" for number in (1, 2, 3, 4, 5)]
    for limit in (100, 5, 2):
        found = await backend.records.due(prefix, limit, newest=True)
        assert [each.key for each in found] == expected[:limit]
    assert [each.key for each in await backend.records.due(prefix, 2)] == expected[:-3:-1]


@pytest.mark.parametrize("newest", [True, False])
async def test_due_records_go_on_after_a_place(backend: Backend, newest: bool) -> None:
    """In one order by due time and key, also where many are due at once, and after a place of no record."""
    now, prefix = await backend.now(), "gbe.state.redrives."
    times = {
        f"{prefix}{name}": now - age * MINUTE for age in (1, 2, 3) for name in (f"a-{age}", f"B{age}", "x")
    }
    times |= {f"{prefix}{age}": now - 2 * MINUTE for age in range(5)}
    for key, due in times.items():
        await backend.records.put(key, {}, 0, due)
    await backend.records.put(f"{prefix}future", {}, 0, now + 60 * MINUTE)
    whole = [each.key for each in await backend.records.due(prefix, 100, newest=newest)]
    assert sorted(whole) == sorted(times)
    assert [times[key] for key in whole] == sorted(times.values(), reverse=newest)
    for limit in (1, 3):
        paged: list[str] = []
        place = None
        while found := await backend.records.due(prefix, limit, newest=newest, after=place):
            paged += [each.key for each in found]
            place = (times[paged[-1]], paged[-1])
        assert paged == whole
    rest = await backend.records.due(prefix, 100, newest=newest, after=(now - 2 * MINUTE, ""))
    same = [key for key in whole if times[key] == now - 2 * MINUTE]
    after = whole.index(same[-1]) + 1 if newest else whole.index(same[0])
    assert [each.key for each in rest] == whole[after:]


# one job


async def test_a_job_is_found_by_its_id_in_any_state(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "leased", "done", "dead", "purged", "retried", "cancelled", "ready", priority=2)
    _, done, dead, purged, retried = await claim(backend, 5)
    assert await complete(backend, done)
    await bury_all(backend, [dead, purged])
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [purged.id]) == [True]
    assert await fail(backend, retried, MINUTE)
    assert await backend.leases.cancel(CHANNEL, "default", "cancelled", None) == 1
    found = {}
    for name in ("leased", "done", "dead", "purged", "retried", "cancelled", "ready"):
        expected = await record(backend, name)
        found[name] = await backend.leases.job(CHANNEL, CONSUMER, expected.id)
        assert found[name] == expected
    assert len({each.id for each in found.values() if each}) == 7


async def test_what_is_no_job_of_a_consumer_is_none(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    await subscribe(backend, "mail")
    for job_id in NO_IDS:
        assert await backend.leases.job(CHANNEL, CONSUMER, job_id) is None, job_id
    for channel, consumer in ((CHANNEL, "mail"), (CHANNEL, "nobody"), ("nowhere", CONSUMER)):
        assert await backend.leases.job(channel, consumer, job.id) is None
