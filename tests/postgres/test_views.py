"""The seed's own names, for people with psql: `events`, `event_log`, and the dead counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from holdfast.model.job import Retry
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    abandon,
    bury,
    claim,
    claim_one,
    complete,
    fail,
    publish,
    record,
    states,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]


def select(sql: Sql, query: str) -> list[dict[str, Any]]:
    return sql.cursor(row_factory=dict_row).execute(query).fetchall()


def columns(sql: Sql, view: str) -> dict[str, str]:
    rows = sql.execute(
        """SELECT column_name, udt_name FROM information_schema.columns
           WHERE table_schema = 'holdfast' AND table_name = %s""",
        [view],
    ).fetchall()
    return dict(rows)


def test_the_views_have_the_columns_of_the_seed(sql: Sql) -> None:
    events, log = columns(sql, "events"), columns(sql, "event_log")
    seed = {"id": "int8", "status": "event_status", "created_at": "timestamptz", "updated_at": "timestamptz"}
    assert seed.items() <= events.items()
    assert seed.items() <= log.items()
    assert (events["event"], log["payload"]) == ("jsonb", "text")
    assert "attempts" in events
    assert "attempts" in log
    statuses = sql.execute("SELECT unnest(enum_range(NULL::holdfast.event_status))::text").fetchall()
    assert statuses == [("PENDING",), ("PROCESSING",), ("COMPLETED",), ("FAILED",)]


async def test_events_shows_what_waits_and_what_is_at_work(sql: Sql, backend: PostgresBackend) -> None:
    # CORRECTIONS 001.1: both times of the seed follow from the one deadline.
    await subscribe(backend)
    await publish(backend, "leased")
    job = await claim_one(backend)
    await publish(backend, "ready")
    await publish(backend, "scheduled", at=await backend.now() + MINUTE)
    rows = {row["event_id"]: row for row in select(sql, "SELECT * FROM holdfast.events")}
    assert {name: row["status"] for name, row in rows.items()} == {
        "leased": "PROCESSING",
        "ready": "PENDING",
        "scheduled": "PENDING",
    }
    leased = rows["leased"]
    assert (leased["id"], leased["event"], leased["attempts"]) == (int(job.id), {"id": "leased"}, 1)
    assert (leased["channel"], leased["consumer"]) == (CHANNEL, CONSUMER)
    assert leased["lease_until"] == job.lease_until
    assert leased["processing_started_at"] == leased["updated_at"] == job.lease_until - timedelta(minutes=5)
    assert rows["ready"]["processing_started_at"] is None
    assert rows["ready"]["attempts"] == 0


async def test_event_log_shows_how_everything_ended(sql: Sql, backend: PostgresBackend) -> None:
    # CORRECTIONS 001.6: the payload's type, and an error column.
    await subscribe(backend, backoff=["0s"])
    for name in ("done", "dead", "cancelled"):
        await backend.log.publish(CHANNEL, [Event({"n": name}, name, type="order.placed")])
    await backend.leases.cancel(CHANNEL, "default", "cancelled", None)
    assert await fail(backend, await claim_one(backend))
    for job in await claim(backend):
        assert await (complete if job.event.id == "done" else bury)(backend, job)
    rows = {row["event_id"]: row for row in select(sql, "SELECT * FROM holdfast.event_log")}
    assert {name: (row["status"], row["outcome"]) for name, row in rows.items()} == {
        "done": ("COMPLETED", "done"),
        "dead": ("FAILED", "dead"),
        "cancelled": ("FAILED", "cancelled"),
    }
    done = rows["done"]
    assert (done["payload"], done["event_type"], done["attempts"]) == ('{"n": "done"}', "order.placed", 2)
    assert [error["error"] for error in done["errors"]] == ["boom"]
    assert [error["error"] for error in rows["dead"]["errors"]] == ["boom"]
    assert rows["dead"]["reason"] == "terminal"
    assert done["updated_at"] >= done["created_at"]
    assert select(sql, "SELECT * FROM holdfast.events") == []


async def test_discarded_work_is_in_the_log(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend, on_dead="discard")
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    [row] = select(sql, "SELECT status, outcome, reason, payload FROM holdfast.event_log")
    assert row == {"status": "FAILED", "outcome": "discarded", "reason": "terminal", "payload": '{"id": "a"}'}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"\x00",
        b"{",
        b'"\\u0000"',
        b'"\\ud800"',
        b"1e999999",
        b"[" * 50_000 + b"]" * 50_000,
        b"9" * 200_000,
    ],
    ids=lambda data: repr(data[:12]),
)
async def test_what_is_no_json_is_shown_as_base64_and_breaks_no_view(
    sql: Sql, backend: PostgresBackend, data: bytes
) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(data, "odd"), Event({"n": 1}, "plain")])
    rows = dict(sql.execute("SELECT event_id, event FROM holdfast.events").fetchall())
    assert rows["plain"] == {"n": 1}
    for job in await claim(backend):
        assert await complete(backend, job)
    [(text,)] = sql.execute(
        """SELECT decode(payload::jsonb->>'data_base64', 'base64') FROM holdfast.event_log
           WHERE event_id = 'odd'"""
    ).fetchall()
    assert text == data


def totals(sql: Sql) -> dict[str, int]:
    return dict(sql.execute("SELECT reason, dead FROM holdfast.dead_totals WHERE dead <> 0").fetchall())


async def test_dead_totals_are_exact_before_and_after_folding(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend, max_abandonments=1)
    await publish(backend, *(f"e-{n}" for n in range(9)))
    for job in await claim(backend, 4):
        assert await bury(backend, job)
    assert totals(sql) == {"terminal": 4}
    await claim(backend)
    assert (await abandon(backend)).buried == 5
    assert totals(sql) == {"terminal": 4, "crash_loop": 5}
    assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, "e-0")).id)
    assert totals(sql) == {"terminal": 3, "crash_loop": 5}
    sql.execute("SELECT holdfast.fold_deltas(3)")
    assert totals(sql) == {"terminal": 3, "crash_loop": 5}
    sql.execute("SELECT holdfast.fold_deltas()")
    assert sql.execute("SELECT count(*) FROM holdfast.dead_deltas").fetchone() == (0,)
    assert totals(sql) == {"terminal": 3, "crash_loop": 5}
    recounted = sql.execute("SELECT reason, count(*) FROM holdfast.dead_letters GROUP BY reason").fetchall()
    assert dict(recounted) == totals(sql)
    assert (await states(backend))[State.DEAD] == 8


async def test_one_statement_writes_one_delta_per_group(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend, max_abandonments=1)
    await publish(backend, *(f"e-{n}" for n in range(50)))
    await claim(backend)
    await backend.advance(5 * MINUTE)
    sql.execute("SELECT holdfast.fold_deltas()")
    before = sql.execute("SELECT coalesce(max(id), 0) FROM holdfast.dead_deltas").fetchone()
    assert (await abandon(backend, timedelta(0))).buried == 50
    assert before is not None
    sequence = sql.execute("SELECT last_value FROM holdfast.dead_deltas_id_seq").fetchone()
    assert sequence == (before[0] + 1,)


async def test_a_count_rolled_back_was_never_there(
    sql: Sql, transaction: Sql, backend: PostgresBackend
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    transaction.execute("DELETE FROM holdfast.dead_letters")
    assert totals(sql) == {"terminal": 1}
    transaction.rollback()
    assert totals(sql) == {"terminal": 1}


STUCK = """
    SELECT event_id FROM holdfast.events
    WHERE status = 'PROCESSING' AND processing_started_at < holdfast.now() - interval '5 minutes'
"""


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_lease_keeps_its_beginning_when_it_is_extended(
    sql: Sql, backend: PostgresBackend, ordered: bool
) -> None:
    await subscribe(backend, ordered=ordered)
    await publish(backend, "a", "b", key="k" if ordered else None)
    job = await claim_one(backend)
    began = job.lease_until - timedelta(minutes=5)
    await backend.advance(4 * MINUTE)
    assert await backend.leases.extend([job], 60 * MINUTE) == [True]
    [row] = select(sql, "SELECT * FROM holdfast.events WHERE event_id = 'a'")
    assert row["processing_started_at"] == began
    assert began + 4 * MINUTE <= row["updated_at"] < began + 5 * MINUTE, "it is being worked on"
    assert select(sql, STUCK) == []
    await backend.advance(2 * MINUTE)
    assert select(sql, STUCK) == [{"event_id": "a"}]
    await subscribe(backend, ordered=ordered, lease="1h")
    [row] = select(sql, "SELECT * FROM holdfast.events WHERE event_id = 'a'")
    assert row["processing_started_at"] == began, "whatever the policy says by now"
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    [row] = select(sql, "SELECT * FROM holdfast.events WHERE event_id = 'a'")
    assert (row["status"], row["processing_started_at"]) == ("PENDING", None)
    again = {each.event.id: each for each in await claim(backend)}["a"]
    [row] = select(sql, "SELECT * FROM holdfast.events WHERE event_id = 'a'")
    assert row["processing_started_at"] == row["updated_at"] == again.lease_until - timedelta(hours=1)


async def test_every_job_of_a_bulk_says_when_its_lease_began(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event({"n": n}, str(n)) for n in range(300)])
    await claim(backend, 10)
    rows = select(sql, "SELECT status, processing_started_at, updated_at, created_at FROM holdfast.events")
    leased = [row for row in rows if row["status"] == "PROCESSING"]
    assert (len(rows), len(leased)) == (300, 10)
    assert all(row["created_at"] <= row["processing_started_at"] == row["updated_at"] for row in leased)
    assert {row["processing_started_at"] for row in rows if row["status"] == "PENDING"} == {None}


async def test_nothing_was_updated_in_the_future(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend)
    await publish(backend, "failed", "released")
    failed, released = await claim(backend)
    assert await fail(backend, failed, 60 * MINUTE)
    assert await backend.leases.retry([Retry(released, 60 * MINUTE)]) == [True]
    await publish(backend, "scheduled", at=await backend.now() + 60 * MINUTE)
    rows = select(sql, "SELECT event_id, updated_at < holdfast.now() AS past FROM holdfast.events")
    assert {row["event_id"]: row["past"] for row in rows} == {
        "failed": True,
        "released": True,
        "scheduled": True,
    }


async def test_history_knows_a_trimmed_event_by_its_id_and_type(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend)
    for name in ("done", "cancelled", "purged", "dead"):
        await backend.log.publish(CHANNEL, [Event({"n": name}, name, type="order.placed", source="shop")])
    assert await backend.leases.cancel(CHANNEL, "shop", "cancelled", None) == 1
    jobs = {job.event.id: job for job in await claim(backend)}
    assert await complete(backend, jobs["done"])
    for name in ("purged", "dead"):
        assert await bury(backend, jobs[name])
    await backend.advance(MINUTE)
    lock = await backend.locks.acquire("sweeper", "tester", timedelta(days=365))
    assert lock is not None
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 100, lock)).removed == 2
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [jobs["purged"].id]) == [True]
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 100, lock)).removed == 1
    rows = {row["event_id"]: row for row in select(sql, "SELECT * FROM holdfast.event_log")}
    assert {name: (row["trimmed"], row["payload"]) for name, row in rows.items()} == {
        "done": (True, None),
        "cancelled": (True, None),
        "purged": (True, None),
        "dead": (False, '{"n": "dead"}'),
    }
    assert {(row["event_type"], row["event_source"]) for row in rows.values()} == {("order.placed", "shop")}
    assert all((row["trimmed_at"] is None) != row["trimmed"] for row in rows.values())
    shown = await backend.leases.job(CHANNEL, CONSUMER, jobs["done"].id)
    assert shown is not None
    assert (shown.event_id, shown.source) == ("done", "shop")
    now = await backend.now()
    hour = timedelta(hours=1)
    assert (await backend.retention.forget(now - hour, now - hour, 100, lock)).jobs == 0
    assert {row["event_id"] for row in select(sql, "SELECT event_id FROM holdfast.event_log")} == set(rows)
    await backend.advance(timedelta(days=1))
    later = await backend.now() - MINUTE
    assert (await backend.retention.forget(later, later, 100, lock)).jobs == 3
    assert select(sql, "SELECT count(*) FROM holdfast.trimmed") == [{"count": 0}]
