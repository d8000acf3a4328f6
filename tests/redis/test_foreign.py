"""Foreign clients: what plain XADD appends is delivered, and what we append is read by plain XRANGE."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import redis

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.model.event import Event
from holdfast.model.job import Retry
from holdfast.model.states import State
from kit import (
    CHANNEL,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    record,
    states,
    step,
    subscribe,
)


async def test_a_plain_append_is_delivered(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    fields = {
        "id": "f-1",
        "type": "order",
        "source": "shop",
        "key": "k",
        "data": '{"n": 1}',
        "headers": '{"t": "x"}',
    }
    client.xadd(CHANNEL, fields)
    event = (await claim_one(backend)).event
    assert (event.id, event.type, event.source, event.key, event.json()) == (
        "f-1",
        "order",
        "shop",
        "k",
        {"n": 1},
    )
    assert dict(event.headers) == {"t": "x"}


async def test_without_an_id_the_entry_names_the_event(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    entry = client.xadd(CHANNEL, {"data": "plain"})
    job = await claim_one(backend)
    assert (job.event.id, job.id, job.event.data) == (entry, entry, b"plain")
    assert await complete(backend, job)
    assert (await record(backend, str(entry))).state is State.DONE


async def test_without_data_its_own_fields_are_the_data(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    client.xadd(CHANNEL, {"type": "task", "state": "queued", "size": 3})
    event = (await claim_one(backend)).event
    assert (event.type, event.json()) == ("task", {"state": "queued", "size": "3"})


async def test_it_is_counted_and_cancelled_before_anybody_polls(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    for number in range(2500):  # more than two pages
        client.xadd(CHANNEL, {"id": f"f-{number}", "data": "1"})
    assert await states(backend) == {State.READY: 2500}
    assert await backend.leases.cancel(CHANNEL, "default", "f-2499", None) == 1
    assert len(await claim(backend, 3000)) == 2499


async def test_its_priority_and_schedule_count(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend, lease="1h")
    later = int(((await backend.now()) + 10 * MINUTE).timestamp() * 1_000_000)
    client.xadd(CHANNEL, {"id": "low", "data": "1", "priority": "nonsense"})
    client.xadd(CHANNEL, {"id": "high", "data": "1", "priority": 7})
    client.xadd(CHANNEL, {"id": "later", "data": "1", "at": later})
    assert ids(await claim(backend)) == ["high", "low"]
    await backend.advance(10 * MINUTE)
    assert (await step(backend)).promoted == 1
    assert ids(await claim(backend)) == ["later"]


async def test_nonsense_in_known_fields_stops_nobody(backend: RedisBackend, client: redis.Redis) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead", ordered=True)
    nonsense = ["nan", "inf", "0x10", "1e400", "", "-", "9" * 40, "soon", "[1]", "\x00"]
    for field in ("priority", "at", "published", "headers", "time", "type", "source", "key", "id"):
        for value in nonsense:
            client.xadd(CHANNEL, {"data": "1", field: value})
    client.xadd(CHANNEL, {b"\xff\xfe": b"\xff", b"key": b"\xff"})
    dead = 0
    while jobs := await claim(backend, 100):
        for job in jobs:
            assert await bury(backend, job)
        dead += len(jobs)
    assert (await states(backend))[State.DEAD] == dead > 60
    assert len(await read_all(backend, "dead")) == dead


async def test_the_same_event_twice_is_one_job(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    for _ in range(3):
        client.xadd(CHANNEL, {"id": "f-1", "data": "same"})
    assert ids(await claim(backend)) == ["f-1"]
    [again] = await backend.log.publish(CHANNEL, [Event(b"same", "f-1")])
    assert again.duplicate
    with pytest.raises(holdfast.IdConflict):
        await backend.log.publish(CHANNEL, [Event(b"other", "f-1")])


@pytest.mark.parametrize("size", [1, 300, 6000])
async def test_a_publish_repeats_what_nobody_has_looked_at_yet(
    backend: RedisBackend, client: redis.Redis, size: int
) -> None:
    await subscribe(backend)
    client.xadd(CHANNEL, {"id": "f-1", "data": "same"})
    events = [Event(b"same", "f-1"), *(Event(n, f"e-{n}") for n in range(size)), Event(b"same", "f-1")]
    first, *_, last = await backend.log.publish(CHANNEL, events)
    [foreign] = await backend.log.read(CHANNEL, None, 1)
    assert (first.duplicate, first.position) == (last.duplicate, last.position) == (True, foreign.position)
    assert (await states(backend))[State.READY] == size + 1
    assert client.xlen(CHANNEL) == size + 1


async def test_a_publish_with_other_content_than_a_foreign_append_is_a_conflict(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    client.xadd(CHANNEL, {"id": "f-1", "data": "theirs"})
    with pytest.raises(holdfast.IdConflict):
        await backend.log.publish(CHANNEL, [Event(1, "e"), Event(b"ours", "f-1")])
    assert ids(await claim(backend)) == ["f-1"]


async def test_in_a_large_batch_it_is_appended_and_not_taken_for_a_repeat(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    client.xadd(CHANNEL, {"id": "f-1", "data": "theirs"})
    events = [Event(b"ours", "f-1"), *(Event(n, f"e-{n}") for n in range(300)), Event(b"ours", "f-1")]
    with pytest.raises(holdfast.IdConflict):
        await backend.log.publish(CHANNEL, [*events, Event(b"not so", "f-1")])
    assert client.xlen(CHANNEL) == 1
    first, *_, last = await backend.log.publish(CHANNEL, events)
    assert (first.duplicate, last.duplicate, last.position) == (False, True, first.position)
    assert (await states(backend))[State.READY] == 302


async def test_the_same_id_with_other_content_is_not_lost(backend: RedisBackend, client: redis.Redis) -> None:
    """Nobody could refuse it, so that it is delivered."""
    await subscribe(backend)
    await publish(backend, "a")
    client.xadd(CHANNEL, {"id": "a", "data": "other"})
    assert len(await claim(backend)) == 2


async def test_ours_and_theirs_keep_the_order_of_the_log(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend, ordered=True)
    await publish(backend, "a", key="k")
    client.xadd(CHANNEL, {"id": "b", "data": "1", "key": "k"})
    await publish(backend, "c", key="k")
    for name in ("a", "b", "c"):
        job = await claim_one(backend)
        assert job.event.id == name
        assert await complete(backend, job)
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b", "c"]


async def test_a_foreign_stream_can_be_read_and_keeps_its_positions(
    backend: RedisBackend, client: redis.Redis
) -> None:
    client.xadd("gbe:events:audit", {"data": "1"})
    [entry] = await read_all(backend, "gbe.events.audit")
    client.hset("{holdfast}:store", "run_id", "another server")
    reborn = backend.fork()
    await reborn.open()
    assert await read_all(reborn, "gbe.events.audit") == [entry]
    await reborn.close()


async def test_a_foreign_client_reads_what_we_publish(backend: RedisBackend, client: redis.Redis) -> None:
    await backend.log.publish(
        "gbe.events.audit",
        [Event({"n": 1}, "a", source="shop", type="t", key="k", headers={"h": "ü"})],
        priority=3,
    )
    [(_, fields)] = client.xrange("gbe:events:audit")
    assert fields.pop("published").isdigit()
    assert json.loads(fields.pop("headers")) == {"h": "ü"}
    assert fields == {
        "id": "a",
        "source": "shop",
        "type": "t",
        "key": "k",
        "priority": "3",
        "data": '{"n":1}',
    }


async def test_a_foreign_event_dies_like_ours(backend: RedisBackend, client: redis.Redis) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    client.xadd(CHANNEL, {"data": "1", "headers": "no json"})
    job = await claim_one(backend)
    assert await bury(backend, job)
    [entry] = await read_all(backend, "dead")
    assert entry.event.id == f"{job.id}#{job.token}"
    assert entry.event.time == job.event.time, "it is still the time of the first publication"
    assert entry.event.headers["holdfast-id"] == job.id


async def test_what_another_client_trimmed_before_its_turn_is_counted_and_told(
    backend: RedisBackend, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    # CORRECTIONS, traps: MAXLEN trims what was not delivered.
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    client.xtrim(CHANNEL, maxlen=1, approximate=False)
    assert ids(await claim(backend)) == ["c"]
    assert "2 events of orders that waited for billing were removed by another client" in caplog.text
    [found] = [each for each in await backend.check() if each.subject == "lost events"]
    assert found.level == "error"
    assert "2 of orders/billing" in found.message
    assert await states(backend) == {State.LEASED: 1}
    assert (await backend.lifecycle.due(1)).load == 1
    assert await backend.leases.find_jobs(CHANNEL, "default", "a") == []


async def test_what_another_client_removed_in_the_middle_is_counted_too(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await subscribe(backend, "quick")
    await publish(backend, *(f"e-{n}" for n in range(10)))
    assert len(await claim(backend, 5, consumer="quick")) == 5
    entries = [entry for entry, _ in client.xrange(CHANNEL)]
    client.xdel(CHANNEL, *entries[2:4], entries[8])
    assert len(await claim(backend, 20)) == 7
    assert len(await claim(backend, 20, consumer="quick")) == 4
    lost = {
        name: client.hget(f"{{holdfast}}:consumer:{ref}", "lost") for name, ref in (("slow", 1), ("quick", 2))
    }
    assert lost == {"slow": "3", "quick": "1"}, "nothing that was handed out before is lost"
    assert await states(backend) == {State.LEASED: 7}
    assert await states(backend, consumer="quick") == {State.LEASED: 9}
    assert (await backend.lifecycle.due(1)).load == 16


async def test_jobs_whose_entries_another_client_trimmed_become_dead_letters(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    assert all(await backend.leases.retry([Retry(job, None) for job in await claim(backend)]))
    client.xtrim(CHANNEL, maxlen=1, approximate=False)
    assert ids(await claim(backend)) == ["c"]
    kept = await record(backend, "a")
    assert (kept.state, kept.reason) == (State.DEAD, "terminal")
    assert "removed from the log" in kept.errors[0]["error"]
    assert await states(backend) == {State.DEAD: 2, State.LEASED: 1}


async def test_a_claim_that_cannot_fetch_its_events_gives_the_jobs_back(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend)
    large = [Event(b"x" * 600_000, "a"), Event(b"x" * 600_000, "b"), Event(1, "c")]
    await backend.log.publish(CHANNEL, large)  # the second has to be fetched

    async def broken(*_: object) -> None:
        raise ValueError("as if the server had answered nonsense")

    with monkeypatch.context() as patch:
        patch.setattr(backend.leases, "_entries", broken)
        with pytest.raises(ValueError, match="nonsense"):
            await claim(backend)
    assert await states(backend) == {State.READY: 3}
    again = await claim(backend)
    assert [(job.event.id, job.attempt, len(job.event.data)) for job in again] == [
        ("a", 1, 600_000),
        ("b", 1, 600_000),
        ("c", 1, 1),
    ]


async def test_a_consumer_that_began_in_the_past_sees_foreign_entries(
    backend: RedisBackend, client: redis.Redis
) -> None:
    client.xadd(CHANNEL, {"id": "old", "data": "1"})
    await backend.advance(timedelta(hours=1))
    await subscribe(backend, start=await backend.now())
    await subscribe(backend, "all", start="earliest")
    client.xadd(CHANNEL, {"id": "new", "data": "1"})
    while (await step(backend)).backfilled:
        pass
    assert ids(await claim(backend, consumer="all")) == ["old", "new"]
    assert ids(await claim(backend)) == ["new"]


async def test_the_same_id_with_other_fields_is_other_content(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    for fields in (
        {"state": "queued"},
        {"state": "done"},
        {"state": "queued"},
        {"state": "queued", "n": "1"},
    ):
        client.xadd(CHANNEL, {"id": "t-1", **fields})
    assert [job.event.json() for job in await claim(backend)] == [
        {"state": "queued"},
        {"state": "done"},
        {"state": "queued", "n": "1"},
    ]


async def test_an_empty_id_is_none(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    entries = [client.xadd(CHANNEL, {"id": "", "source": "", "type": "", "data": "1"}) for _ in range(2)]
    assert ids(await claim(backend)) == entries
    assert (await record(backend, str(entries[1]))).state is State.LEASED


async def test_headers_that_are_too_deep_are_none(backend: RedisBackend, client: redis.Redis) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    client.xadd(CHANNEL, {"id": "deep", "data": "1", "headers": '{"a":' + "[" * 500 + "]" * 500 + "}"})
    [job] = await claim(backend)
    assert dict(job.event.headers) == {}
    assert await bury(backend, job)
    assert len(await read_all(backend)) == len(await read_all(backend, "dead")) == 1


async def test_a_copy_of_what_has_no_data_has_its_own_fields(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    client.xadd(CHANNEL, {"id": "t-1", "type": "task", "state": "queued", "size": 3, "key": "k"})
    job = await claim_one(backend)
    assert await bury(backend, job)
    [entry] = await read_all(backend, "dead")
    assert entry.event.json() == job.event.json() == {"state": "queued", "size": "3"}


async def test_what_is_scheduled_far_ahead_is_found_as_long_as_ours(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    at = await backend.now() + timedelta(days=100)
    client.xadd(CHANNEL, {"id": "theirs", "data": "1", "at": int(at.timestamp() * 1_000_000)})
    await publish(backend, "ours", at=at)
    theirs, ours = (
        client.pttl(f"{{holdfast}}:event:{CHANNEL}/7:default/{name}") for name in ("theirs", "ours")
    )
    assert abs(theirs - ours) < 60_000


async def test_the_load_is_right_where_old_entries_were_trimmed_before_they_were_noted(
    backend: RedisBackend, client: redis.Redis
) -> None:
    for number in range(2_500):
        client.xadd(CHANNEL, {"data": str(number)})
    await backend.advance(timedelta(hours=1))
    await subscribe(backend)
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    trimmed = await backend.retention.trim(CHANNEL, await backend.now(), 10_000, lock)
    assert trimmed.removed == 2_500
    await publish(backend, "a")
    assert (await backend.lifecycle.due(1)).load == 1
    assert await complete(backend, await claim_one(backend))
    assert (await backend.lifecycle.due(1)).load == 0


async def test_a_claim_that_ends_at_the_last_entry_counts_what_was_removed_before_it(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend, max_depth=3)
    await publish(backend, "a", "b", "c")
    client.xdel(CHANNEL, client.xrange(CHANNEL)[1][0])
    jobs = await claim(backend, 2)
    assert ids(jobs) == ["a", "c"]
    assert await states(backend) == {State.LEASED: 2}
    assert all(await backend.leases.complete(jobs))
    assert (await backend.lifecycle.due(1)).load == 0


async def test_what_was_removed_after_it_became_a_job_of_its_own_is_not_lost_a_second_time(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await publish(backend, "e-0")
    await publish(backend, "special", priority=1)
    [special] = await claim(backend, 1)
    for number in range(1, 60):
        await publish(backend, f"e-{number}")
    client.xdel(CHANNEL, special.id)
    assert len(await claim(backend, 100)) == 60
    assert await states(backend) == {State.LEASED: 61}
    assert client.hget("{holdfast}:consumer:1", "lost") is None
    assert (await backend.lifecycle.due(1)).load == 61
