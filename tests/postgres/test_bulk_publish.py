"""Bulk publish writes by COPY what holdfast.publish_many() writes by SQL."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from kit import until

Sql = psycopg.Connection[tuple[Any, ...]]
COPIED, INSERTED = "copied", "inserted"
BATCH = 200  # large enough for COPY

EVENTS = [
    Event(b"plain", "plain"),
    Event(
        b"\x00\xff",
        "all",
        "tester",
        "order.created",
        "käse",
        datetime(2024, 5, 6, tzinfo=UTC),
        {"trace": "ü"},
    ),
    Event(b"", "empty", key=""),
    *[Event(b"%d" % number, f"e-{number}", key=f"k-{number % 7}") for number in range(BATCH - 3)],
]
JOBS = """
    SELECT c.name, e.id, j.state, j.due_at = j.created_at, j.due_at - j.created_at > interval '1 hour',
           j.expires_at - j.due_at, j.created_at = e.published_at, j.token, j.lease_until, j.priority,
           j.attempts, j.abandonments, j.held, j.order_key, j.worker, j.errors
    FROM holdfast.live_jobs j JOIN holdfast.consumers c ON c.id = j.consumer_id
    JOIN holdfast.log e ON (e.channel_id, e.epoch, e.seq) = (j.channel_id, j.epoch, j.seq)
    WHERE j.channel_id = (SELECT id FROM holdfast.channels WHERE name = %s) ORDER BY c.name, j.seq"""
LOG = """
    SELECT id, source, type, key, time, headers, data, at, priority FROM holdfast.log
    WHERE channel_id = (SELECT id FROM holdfast.channels WHERE name = %s) ORDER BY seq"""
KEYS = """
    SELECT k.id, k.source, k.content_hash, k.published_at = e.published_at
    FROM holdfast.keys k JOIN holdfast.log e USING (channel_id, epoch, seq)
    WHERE k.channel_id = (SELECT id FROM holdfast.channels WHERE name = %s) ORDER BY seq"""


@pytest.mark.parametrize("at", [None, datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)])
async def test_both_ways_write_the_same(bus: Bus, sql: Sql, at: datetime | None) -> None:
    for channel in (COPIED, INSERTED):
        await bus.subscribe(channel, "plain")
        await bus.subscribe(channel, "lanes", ordered=True)
        await bus.subscribe(channel, "hasty", expires_after="90m")
    copied = await bus.publish_many(COPIED, EVENTS, at=at, priority=7)
    inserted = await bus.publish_many(INSERTED, EVENTS, at=at, priority=7, connection=sql)
    assert [receipt.id for receipt in copied] == [receipt.id for receipt in inserted]
    for query, rows in ((JOBS, 3 * BATCH), (LOG, BATCH), (KEYS, BATCH)):
        made = sql.execute(query, [COPIED]).fetchall()
        assert made == sql.execute(query, [INSERTED]).fetchall()
        assert len(made) == rows


async def test_receipts_tell_the_positions_in_the_log(backend: PostgresBackend, bus: Bus) -> None:
    receipts = await bus.publish_many(COPIED, [Event(number) for number in range(BATCH)])
    log = await backend.log.read(COPIED, None, BATCH)
    assert [(entry.event.id, entry.position) for entry in log] == [(r.id, r.position) for r in receipts]
    assert [entry.event.json() for entry in log] == list(range(BATCH))
    assert not any(receipt.duplicate for receipt in receipts)


async def test_a_batch_counts_in_the_depth_of_a_bounded_consumer(bus: Bus, sql: Sql) -> None:
    await bus.subscribe(COPIED, "bounded", max_depth=BATCH + 1)
    await bus.publish_many(COPIED, EVENTS)
    assert sql.execute("SELECT live FROM holdfast.depths").fetchall() == [(BATCH,)]


async def test_a_repeat_among_the_events_is_told_apart(bus: Bus, sql: Sql) -> None:
    await bus.subscribe(COPIED, "plain")
    [first] = await bus.publish_many(COPIED, [EVENTS[-1]])
    receipts = await bus.publish_many(COPIED, EVENTS)
    assert [receipt.duplicate for receipt in receipts] == [False] * (BATCH - 1) + [True]
    assert receipts[-1].position == first.position
    assert sql.execute("SELECT count(*) FROM holdfast.live_jobs").fetchall() == [(BATCH,)]


async def test_a_consumer_from_the_beginning_gets_the_whole_of_the_last_batch(bus: Bus, sql: Sql) -> None:
    await bus.publish_many(COPIED, EVENTS)
    await bus.subscribe(COPIED, "late", start="earliest")
    more = [Event(number, f"m-{number}") for number in range(BATCH)]
    await bus.publish_many(COPIED, more)
    assert sql.execute("SELECT count(*) FROM holdfast.live_jobs").fetchall() == [(2 * BATCH,)]
    jobs = await bus.poll(COPIED, "late", limit=3 * BATCH)
    assert [job.event.id for job in jobs] == [event.id for event in (*EVENTS, *more)]


def test_no_batch_has_more_events_than_a_publish_has_numbers(sql: Sql) -> None:
    begin = "SELECT cardinality(seqs) FROM holdfast.begin_publish('full', %s)"
    assert sql.execute(begin, [131_072]).fetchall() == [(131_072,)]
    with pytest.raises(psycopg.Error, match="131073 events") as refused:
        sql.execute(begin, [131_073])
    assert refused.value.sqlstate == "HF003"


@pytest.mark.parametrize("count", [2, BATCH])
async def test_publishers_that_share_ids_never_wait_in_a_circle(
    backend: PostgresBackend, sql: Sql, transaction: Sql, count: int
) -> None:
    events = [Event(b"1", f"e-{number:03}") for number in reversed(range(count))]
    publish = "SELECT holdfast.publish(%s, '1', id => %s)"
    transaction.execute(publish, [COPIED, "e-000"])
    publishing = asyncio.create_task(backend.log.publish(COPIED, events))
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def waits() -> bool:
        return len(sql.execute(waiting).fetchall()) == 1

    await until(waits)
    transaction.execute(publish, [COPIED, "e-001"])  # it holds nothing that we could wait for
    transaction.commit()
    assert [receipt.duplicate for receipt in await publishing] == [False] * (count - 2) + [True, True]


async def test_publishers_to_a_bounded_consumer_never_wait_in_a_circle(
    backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    """One of them has looked whether there is room, as whoever copies does first, the other has begun."""
    await backend.channels.subscribe(COPIED, "billing", Policy.of(max_depth=1_000))
    transaction.execute("SELECT holdfast.begin_bulk(%s, 1)", [COPIED])
    publishing = asyncio.create_task(backend.log.publish(COPIED, [Event(b"1", "e-000")]))
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def waits() -> bool:
        return len(sql.execute(waiting).fetchall()) == 1

    await until(waits)
    transaction.execute("SELECT holdfast.publish(%s, '1', id => 'e-000')", [COPIED])
    transaction.commit()
    assert [receipt.duplicate for receipt in await publishing] == [True]
