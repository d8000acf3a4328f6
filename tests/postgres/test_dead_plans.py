"""Plans for dead letters: each list by its index, and the counts without looking at a single letter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from explain import Plan, explain, pooled, watched

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.embedded import Postgres
from holdfast.model.deadletters import DeadFilter
from kit import CHANNEL, CONSUMER, subscribe

MANY = 20_000
FILL = """
    INSERT INTO holdfast.dead_letters (consumer_id, channel_id, epoch, seq, token, created_at, died_at,
                                       priority, attempts, abandonments, reason, fingerprint, errors)
    SELECT c.id, c.channel_id, 1, nextval('holdfast.event_seq'), 1, now(), now() - n * interval '1 second',
           0, 1, 0, CASE WHEN mod(n, 1000) = 0 THEN 'expired' ELSE 'terminal' END, md5(mod(n, 500)::text),
           '[]'
    FROM holdfast.consumers c, generate_series(1, %s) n
"""
WANTED = {
    "dead_letters_consumer": DeadFilter(CHANNEL, CONSUMER),
    "dead_letters_reason": DeadFilter(CHANNEL, CONSUMER, reason="expired"),
    "dead_letters_fingerprint": DeadFilter(CHANNEL, CONSUMER, fingerprint="c4ca4238a0b923820dcc509a6f75849b"),
}


@pytest.fixture(scope="module")
async def url(postgres: Postgres, admin: psycopg.Connection, template: str) -> AsyncIterator[str]:
    """A database with many dead letters of two consumers."""
    admin.execute(f"CREATE DATABASE dead_plans TEMPLATE {template}")
    backend = PostgresBackend(postgres.database_url("dead_plans"))
    await backend.open()
    await subscribe(backend)
    await subscribe(backend, "mail")
    await backend.close()
    with psycopg.connect(backend.url, autocommit=True) as sql:
        sql.execute(FILL, [MANY])
        sql.execute("VACUUM ANALYZE holdfast.dead_letters")
    yield backend.url
    admin.execute("DROP DATABASE dead_plans WITH (FORCE)")


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Any]:
    async with pooled(url) as opened:
        yield opened


def touching(plans: list[Plan]) -> list[Plan]:
    return [p for p in plans if any(node.get("Relation Name") == "dead_letters" for node in p.nodes)]


async def run(connection: Any, query: str, parameters: dict[str, Any]) -> tuple[list[Any], list[Plan]]:
    """What a query answers, and the plans of every statement inside it."""
    async with watched(connection) as plans:
        rows = await (await connection.execute(QUERIES[query], parameters)).fetchall()
    assert plans
    return rows, plans


@pytest.mark.parametrize("index", WANTED)
async def test_a_list_walks_the_index_that_was_made_for_it(connection: Any, index: str) -> None:
    wanted = WANTED[index]
    parameters = {
        "channel": wanted.channel,
        "consumer": wanted.consumer,
        "reason": wanted.reason,
        "fingerprint": wanted.fingerprint,
        "since": None,
        "consumer_id": 0,
        "seq": 0,
        "limit": 11,
    }
    for hours in (0, 5):
        start = datetime.now(UTC) - timedelta(hours=hours)
        rows, plans = await run(connection, "dead_page", parameters | {"died_at": start})
        assert rows
        assert index in {name for plan in touching(plans) for name in plan.indexes}
        for plan in touching(plans):
            assert plan.scanned == set(), plan.text
            assert plan.buffers <= 200, f"{plan.buffers} pages: {plan.text}"


async def test_the_counts_are_read_without_the_dead_letters(connection: Any) -> None:
    rows, plans = await run(connection, "dead_counts", {})
    assert [row[3] for row in rows] == [20, MANY - 20] * 2
    assert touching(plans) == []
    assert sum(plan.buffers for plan in plans) <= 50


async def test_clusters_look_at_one_letter_each(connection: Any) -> None:
    plan = await explain(connection, "clusters", run=True, channel=CHANNEL, consumer=None, limit=10)
    assert plan.scanned == set()
    samples = [node for node in plan.nodes if node.get("Index Name") == "dead_letters_fingerprint"]
    assert [(node["Actual Rows"], node["Actual Loops"]) for node in samples] == [(1, 10)]
