"""Out of dead: revived, with other data where somebody patched it; purged; and gone with their consumer."""

from __future__ import annotations

import pytest
from dead_helpers import bury_all, check_counts, clustered, counts, die, listed
from sweeps import Sweep, kept, locked

import holdfast
from holdfast.contracts import Backend
from holdfast.model.deadletters import Removal
from holdfast.model.errors import Outdated
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    abandon,
    by_id,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    read_all,
    record,
    states,
    step,
    subscribe,
)

MAIL = "mail"
NO_IDS = ("", "0", "-1", "nonsense", "1" * 40, "orders/1", "ü")
PATCH = b'{"fixed": true}'


# revive


async def test_a_revived_job_is_ready_at_the_tail_with_fresh_budgets(backend: Backend) -> None:
    await subscribe(backend, max_attempts=3)
    await publish(backend, "a")
    assert await fail(backend, await claim_one(backend))
    job = await claim_one(backend)
    await bury_all(backend, [job])
    before = await record(backend, "a")
    await publish(backend, "b")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id]) == [True]
    after = await record(backend, "a")
    assert (after.state, after.attempts, after.abandonments) == (State.READY, 0, 0)
    assert after.token > before.token
    assert after.errors == before.errors, "its past is not forgotten"
    assert not await complete(backend, job), "a lease from before is lost"
    assert ids(await claim(backend)) == ["b", "a"]


async def test_the_answers_are_in_the_order_of_the_ids(backend: Backend) -> None:
    await subscribe(backend)
    a, b, c = await die(backend, "a", "b", "c")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [b.id]) == [True]
    asked = [c.id, "nonsense", b.id, a.id]
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, asked) == [True, False, False, True]
    await bury_all(backend, await claim(backend))
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [b.id]) == [True]
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, asked) == [True, False, False, True]
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, []) == []
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, []) == []


@pytest.mark.parametrize("verb", ["revive", "purge"])
async def test_what_is_not_dead_is_not_touched(backend: Backend, verb: str) -> None:
    await subscribe(backend)
    await subscribe(backend, MAIL)
    await publish(backend, "purged", "dead", "leased", "done", "scheduled", "cancelled")
    jobs = by_id(await claim(backend, 5))
    await bury_all(backend, [jobs["purged"], jobs["dead"]])
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [jobs["purged"].id]) == [True]
    assert await complete(backend, jobs["done"])
    assert await fail(backend, jobs["scheduled"], 10 * MINUTE)
    cancelled = await record(backend, "cancelled")
    assert await backend.leases.cancel(CHANNEL, "default", "cancelled", CONSUMER) == 1
    move = getattr(backend.deadletters, verb)
    untouched = [jobs[name].id for name in ("purged", "leased", "done", "scheduled")]
    asked = [*untouched, cancelled.id, *NO_IDS]
    before = await states(backend)
    assert await move(CHANNEL, CONSUMER, asked) == [False] * len(asked)
    assert await move(CHANNEL, MAIL, [jobs["dead"].id]) == [False], "another consumer's"
    assert await move(CHANNEL, "nobody", [jobs["dead"].id]) == [False]
    assert await move("nowhere", CONSUMER, [jobs["dead"].id]) == [False]
    assert await states(backend) == before
    assert await complete(backend, jobs["leased"]), "its lease is as good as before"


@pytest.mark.parametrize("verb", ["revive", "purge"])
async def test_an_id_that_is_named_twice_moves_once(backend: Backend, verb: str) -> None:
    await subscribe(backend)
    a, _ = await die(backend, "a", "b")
    assert any(await getattr(backend.deadletters, verb)(CHANNEL, CONSUMER, [a.id, a.id]))
    assert await check_counts(backend) == 1
    assert sum((await states(backend)).values()) == 2


@pytest.mark.parametrize("verb", ["revive", pytest.param("purge", marks=pytest.mark.slow)])
async def test_a_thousand_move_in_one_step(backend: Backend, verb: str) -> None:
    await subscribe(backend)
    jobs = []
    for start in (0, 500):
        jobs += await die(backend, *(f"e-{n}" for n in range(start, start + 500)))
    move = getattr(backend.deadletters, verb)
    assert await move(CHANNEL, CONSUMER, [job.id for job in jobs]) == [True] * 1000
    assert await states(backend) == {State.READY if verb == "revive" else State.PURGED: 1000}
    assert await check_counts(backend) == 0


async def test_a_revived_job_has_its_whole_time_to_wait_again(backend: Backend) -> None:
    await subscribe(backend, expires_after="5m")
    await publish(backend, "a")
    assert (await abandon(backend)).buried == 1
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [(await record(backend, "a")).id]) == [True]
    assert (await step(backend)).total == 0
    await backend.advance(5 * MINUTE)
    assert (await step(backend)).buried == 1


async def test_revived_jobs_fill_a_bounded_consumer(backend: Backend) -> None:
    await subscribe(backend, max_depth=2)
    jobs = await die(backend, "a", "b")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id for job in jobs]) == [True, True]
    with pytest.raises(holdfast.Overloaded):
        await publish(backend, "c")
    for job in await claim(backend):
        assert await complete(backend, job)
    await publish(backend, "c")


async def test_a_revived_job_of_an_ordered_consumer_keeps_the_order_of_its_key(backend: Backend) -> None:
    await subscribe(backend, ordered=True)
    await publish(backend, "k1", "k2", "k3", "k4", key="k")
    dead = []
    for _ in range(2):
        dead += [await claim_one(backend)]
        await bury_all(backend, dead[-1:])
    running = await claim_one(backend)
    assert running.event.id == "k3"
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id for job in dead]) == [True, True]
    assert await complete(backend, running)
    for name in ("k1", "k2", "k4"):
        job = await claim_one(backend)
        assert job.event.id == name
        assert await claim(backend) == [], "one at a time"
        assert await complete(backend, job)


# with other data


async def test_a_patch_is_handed_out_instead_of_the_events_own_data(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, MAIL)
    event = Event(b"broken", "a", source="shop", type="order", key="k", headers={"trace": "ü"})
    await backend.log.publish(CHANNEL, [event, Event(b"well", "b")])
    first, other = await claim(backend)
    await bury_all(backend, [first, other])
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [first.id], PATCH) == [True]
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [other.id]) == [True]
    patched, plain = await claim(backend)
    assert patched.event == first.event._replace(data=PATCH), "nothing else has changed"
    assert plain.event == other.event
    assert [entry.event.data for entry in await read_all(backend)] == [b"broken", b"well"], "the log has not"
    assert [job.event.data for job in await claim(backend, consumer=MAIL)] == [b"broken", b"well"]
    assert await complete(backend, patched)
    assert (await record(backend, "a", source="shop")).state is State.DONE


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_patch_stays_through_retries_abandonment_and_another_death(
    backend: Backend, ordered: bool
) -> None:
    await subscribe(backend, ordered=ordered)
    [job] = await die(backend, "a")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], PATCH) == [True]
    assert await fail(backend, await claim_one(backend))
    await claim_one(backend)
    assert (await abandon(backend)).abandoned == 1
    again = await claim_one(backend)
    assert again.event.data == PATCH
    await bury_all(backend, [again])
    letter = await backend.deadletters.letter(CHANNEL, CONSUMER, job.id)
    assert letter is not None
    assert letter.event == again.event
    assert letter.original == job.event.data
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id]) == [True], "without another patch"
    again = await claim_one(backend)
    assert again.event.data == PATCH
    await bury_all(backend, [again])
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    assert (await claim_one(backend)).event.data == PATCH


@pytest.mark.parametrize("data", [b"", b"\x00\xff raw", b"x" * 100_000], ids=["empty", "raw", "large"])
async def test_a_patch_is_any_bytes_and_the_last_one_counts(backend: Backend, data: bytes) -> None:
    await subscribe(backend)
    [job] = await die(backend, "a")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], PATCH) == [True]
    await bury_all(backend, await claim(backend))
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], data) == [True]
    again = await claim_one(backend)
    assert again.event.data == data
    await bury_all(backend, [again])
    letter = await backend.deadletters.letter(CHANNEL, CONSUMER, job.id)
    assert letter is not None
    assert letter.event is not None
    assert (letter.event.data, letter.original) == (data, job.event.data)


async def test_a_refused_revive_patches_nothing(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job_id = (await record(backend, "a")).id
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job_id], PATCH) == [False]
    assert (await claim_one(backend)).event.json() == {"id": "a"}


# purge


async def test_a_purge_leaves_a_record_and_nothing_to_claim(backend: Backend) -> None:
    await subscribe(backend)
    a, b = await die(backend, "a", "b")
    dead = await record(backend, "a")
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [a.id]) == [True]
    left = await record(backend, "a")
    assert (left.state, left.reason, left.errors) == (State.PURGED, "terminal", dead.errors)
    assert left.ended_at is not None
    assert await states(backend) == {State.PURGED: 1, State.DEAD: 1}
    assert await claim(backend) == []
    assert not await backend.leases.requeue(CHANNEL, CONSUMER, a.id)
    assert [each.record.id for each in await listed(backend)] == [b.id]


@pytest.mark.parametrize("patched", [False, True])
async def test_a_purged_letter_no_longer_keeps_its_event(backend: Backend, patched: bool) -> None:
    trim = Sweep(backend, await locked(backend))
    await subscribe(backend)
    [job] = await die(backend, "a")
    if patched:
        assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], PATCH) == [True]
        await bury_all(backend, await claim(backend))
    await trim()
    letter = await backend.deadletters.letter(CHANNEL, CONSUMER, job.id)
    assert letter is not None
    assert letter.event is not None, "until then it does"
    assert (letter.original or letter.event.data) == job.event.data
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id]) == [True]
    await trim()
    assert await kept(backend) == []
    [again] = await publish(backend, "a")
    assert again.duplicate


# the end of a consumer


async def removed(backend: Backend, limit: int = 100, consumer: str = CONSUMER) -> list[Removal]:
    """Every step until the consumer is gone."""
    steps = [await backend.channels.remove_consumer(CHANNEL, consumer, limit)]
    while not steps[-1].done:
        assert len(steps) < 100, "it does not end"
        steps.append(await backend.channels.remove_consumer(CHANNEL, consumer, limit))
    return steps


async def populate(backend: Backend, consumer: str = CONSUMER) -> None:
    """Two dead letters, two that ended, one lease and two that wait."""
    jobs = await claim(backend, 5, consumer=consumer)
    await bury_all(backend, jobs[:2])
    assert all(await backend.leases.complete(jobs[2:4]))


async def begun(backend: Backend) -> None:
    """A consumer whose removal has only just begun, beside another one."""
    await subscribe(backend)
    await subscribe(backend, MAIL)
    await publish(backend, *"abcdefg")
    await populate(backend)
    await populate(backend, MAIL)
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_a_removed_consumer_takes_everything_along_in_steps(backend: Backend, limit: int) -> None:
    await subscribe(backend)
    await subscribe(backend, MAIL)
    await publish(backend, *"abcdefg")
    await populate(backend)
    await populate(backend, MAIL)
    before = await states(backend, consumer=MAIL)
    steps = await removed(backend, limit)
    # What waits without a row of its own is counted at once, and a row of history may tell of several jobs.
    assert all(each.dead <= limit for each in steps)
    assert all(each.jobs + each.dead <= limit for each in steps[1:])
    assert [sum(getattr(each, what) for each in steps) for what in ("jobs", "dead", "history")] == [3, 2, 2]
    assert await states(backend, consumer=MAIL) == before, "the other one keeps its own"
    assert await check_counts(backend) == 2
    with pytest.raises(holdfast.NotFound, match=CONSUMER):
        await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)


async def test_from_the_first_step_on_it_is_nowhere(backend: Backend) -> None:
    await begun(backend)
    assert [each.name for each in await backend.channels.consumers()] == [MAIL]
    assert (await backend.channels.stats(CHANNEL)).consumers == [MAIL]
    for verb in (backend.channels.consumer, backend.channels.consumer_stats):
        with pytest.raises(holdfast.NotFound, match=CONSUMER):
            await verb(CHANNEL, CONSUMER)
    with pytest.raises(holdfast.NotFound, match=CONSUMER):
        await backend.channels.set_paused(CHANNEL, CONSUMER, True)
    with pytest.raises(holdfast.NotFound, match=CONSUMER):
        await backend.channels.set_display(CHANNEL, CONSUMER, "gone")
    assert {each.consumer for each in await backend.leases.find_jobs(CHANNEL, "default", "g")} == {MAIL}
    assert {consumer for _, consumer, _ in await counts(backend)} == {MAIL}
    assert {consumer for _, consumer, _ in await clustered(backend)} == {MAIL}
    assert {each.record.consumer for each in await listed(backend)} == {MAIL}


async def test_from_the_first_step_on_it_moves_no_job(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, MAIL)
    dead = await die(backend, "a", "b", "c")
    await publish(backend, "d", "e", "f")
    lease = await claim_one(backend)
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done
    assert await claimable(backend) == []
    assert not await complete(backend, lease)
    for job in dead:
        assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id]) == [False]
        assert await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id]) == [False]
        assert await backend.deadletters.letter(CHANNEL, CONSUMER, job.id) is None
        assert await backend.leases.job(CHANNEL, CONSUMER, job.id) is None
        assert not await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    await publish(backend, "later")
    await publish(backend, *(f"bulk-{n}" for n in range(300)))
    await backend.advance(60 * MINUTE)
    await step(backend)
    assert (await backend.deadletters.counts()) == []
    steps = await removed(backend)
    assert sum(each.jobs for each in steps) <= 3, "it got no more jobs"
    assert len(await claim(backend, 1000, consumer=MAIL)) == 307


async def claimable(backend: Backend) -> list[str]:
    """What a consumer would hand out; one that is not there hands out nothing."""
    try:
        return ids(await claim(backend))
    except holdfast.NotFound:
        return []


async def test_its_name_is_free_only_after_the_last_step(backend: Backend) -> None:
    await begun(backend)
    with pytest.raises(Outdated, match="wait"):
        await subscribe(backend)
    await removed(backend)
    again = await subscribe(backend)
    assert (again.paused, again.display) == (False, "")
    assert await states(backend) == {}
    assert await claim(backend) == []
    await publish(backend, "new")
    assert ids(await claim(backend)) == ["new"]
    assert await backend.leases.find_jobs(CHANNEL, "default", "a") == [
        await record(backend, "a", consumer=MAIL)
    ]


async def test_it_no_longer_holds_the_log_back(backend: Backend) -> None:
    trim = Sweep(backend, await locked(backend))
    await subscribe(backend)
    await die(backend, "dead", "dead too")
    await publish(backend, "waits")
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done
    done = await trim()
    assert done.hold is None
    assert "waits" not in await kept(backend)
    await removed(backend)
    await trim()
    assert await kept(backend) == []


async def test_a_removal_in_the_middle_of_a_backfill_ends_that_too(backend: Backend) -> None:
    await publish(backend, *(f"e-{n}" for n in range(20)))
    await subscribe(backend, start="earliest")
    await removed(backend)
    assert (await backend.lifecycle.due(100)).backfills == []
    await step(backend)
    await subscribe(backend)
    assert await claim(backend) == []


async def test_a_full_consumer_that_is_removed_lets_publishers_go_on(backend: Backend) -> None:
    await subscribe(backend, max_depth=1)
    await publish(backend, "a")
    with pytest.raises(holdfast.Overloaded):
        await publish(backend, "b")
    await removed(backend)
    await publish(backend, "b", "c")


async def test_an_ordered_consumer_can_be_removed_and_made_again(backend: Backend) -> None:
    await subscribe(backend, ordered=True)
    await publish(backend, "k1", "k2", "k3", key="k")
    await bury_all(backend, [await claim_one(backend)])
    await claim_one(backend)
    await removed(backend, 1)
    await subscribe(backend)
    await publish(backend, "l1", "l2", key="l")
    assert ids(await claim(backend)) == ["l1", "l2"], "even as another kind"


async def test_only_a_worker_consumer_is_removed(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, "sink")
    for channel, consumer in ((CHANNEL, "sink"), (CHANNEL, "nobody"), ("nowhere", CONSUMER)):
        with pytest.raises(holdfast.NotFound, match=consumer):
            await backend.channels.remove_consumer(channel, consumer, 10)
    assert [each.name for each in await backend.cursors.all()] == ["sink"]
