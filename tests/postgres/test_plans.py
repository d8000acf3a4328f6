"""Plans: each statement finds its jobs by the index that was made for it, whatever the statistics say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from explain import Plan, explain, pooled, watched

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.leases import error_entry
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Connection
from holdfast.embedded import Postgres
from holdfast.model.event import Event
from kit import BOOM, CHANNEL, CONSUMER, MINUTE, claim, subscribe

WAITING = 100_000
FEW = 1000  # pages that a batch of 50 may look at; a look at every job is 100,000
OF = {"channel": CHANNEL, "consumer": CONSUMER}
AT_THE_END = {"until_epoch": 9, "until_seq": 0}


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
async def url(
    request: pytest.FixtureRequest, postgres: Postgres, admin: psycopg.Connection, template: str
) -> AsyncIterator[str]:
    """A database with 100,000 waiting jobs, 50 leased ones, and as many that are done."""
    name = f"plans_{request.param.replace(' ', '_')}"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    address = postgres.database_url(name)
    with psycopg.connect(address, autocommit=True) as connection:
        for table in ("jobs", "log", "keys", "job_log"):
            connection.execute(f"ALTER TABLE holdfast.{table} SET (autovacuum_enabled = false)")
    await fill(address)
    if request.param == "analyzed":
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    yield address
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def fill(address: str) -> None:
    backend = PostgresBackend(address)
    await backend.open()
    await subscribe(backend, expires_after="10d")
    await subscribe(backend, "lanes", ordered=True)
    later = await backend.now() + 60 * MINUTE
    for start in range(0, WAITING // 2, 10_000):
        lane = "k" if start else "scheduled"
        events = [Event(b"{}", f"e-{n}", key=f"{lane}-{n % 5000}") for n in range(start, start + 10_000)]
        await backend.log.publish(CHANNEL, events, at=later if start == 0 else None)
    await backend.leases.complete(await claim(backend, 50))
    await claim(backend, 50)
    await backend.close()


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    async with pooled(url) as opened:
        yield opened


async def leases(connection: Connection, count: int = 50) -> dict[str, list[int]]:
    """The jobs that are leased, as a worker would name them."""
    cursor = await connection.execute(
        "SELECT seq, token FROM holdfast.jobs WHERE lease_until IS NOT NULL ORDER BY seq LIMIT %s", [count]
    )
    rows = await cursor.fetchall()
    assert len(rows) == count
    return {"seqs": [seq for seq, _ in rows], "tokens": [token for _, token in rows]}


def check(plan: Plan, *indexes: str, few: int = FEW) -> None:
    assert plan.scanned == set(), plan.text
    assert set(indexes) <= plan.indexes, plan.text
    assert plan.buffers <= few, f"{plan.buffers} pages: {plan.text}"


async def test_claim_walks_the_index_of_ready_jobs(connection: Connection) -> None:
    check(await explain(connection, "claim", run=True, **OF, limit=50, worker="w"), "jobs_ready", "log_pkey")


async def test_complete_goes_by_the_primary_key(connection: Connection) -> None:
    check(await explain(connection, "complete", run=True, **OF, **await leases(connection)), "jobs_pkey")


async def test_extend_goes_by_the_primary_key(connection: Connection) -> None:
    plan = await explain(connection, "extend", run=True, **OF, **await leases(connection), by=MINUTE)
    check(plan, "jobs_pkey")


async def test_retry_goes_by_the_primary_key(connection: Connection) -> None:
    error = error_entry(BOOM, 1)
    plan = await explain(
        connection,
        "retry",
        run=True,
        **OF,
        **await leases(connection),
        delays=[MINUTE] * 50,
        errors=[error] * 50,
    )
    check(plan, "jobs_pkey")


@pytest.mark.parametrize("kind", ["lease", "schedule", "expiry"])
async def test_each_deadline_has_its_own_partial_index(connection: Connection, kind: str) -> None:
    # CORRECTIONS 001.8: OR over two states defeats one index.
    index = {"lease": "jobs_leased", "schedule": "jobs_scheduled", "expiry": "jobs_expiring"}[kind]
    plan = await explain(connection, "due", run=True, limit=500)
    check(plan, index)
    [scan] = [node for node in plan.nodes if node.get("Index Name") == index]
    assert scan["Node Type"] == "Index Scan"
    assert scan["Actual Rows"] == 0, "nothing is due, and nothing was looked at"
    assert "Index Cond" in scan, "it begins at the deadline, not at the beginning"


async def test_a_reader_walks_the_log_from_its_position(connection: Connection) -> None:
    [middle] = await (
        await connection.execute("SELECT epoch, seq FROM holdfast.log ORDER BY seq OFFSET 25000 LIMIT 1")
    ).fetchall()
    position = dict(zip(("epoch", "seq"), middle, strict=True))
    plan = await explain(connection, "read", run=True, channel=CHANNEL, **position, **AT_THE_END, limit=50)
    check(plan, "log_pkey")


async def test_a_million_events_that_wait_are_counted_in_the_index(connection: Connection) -> None:
    """As a watch of the lag asks for them: their rows are not read."""
    all_of_it = {"epochs": [0], "seqs": [0], "until_epochs": [9], "until_seqs": [0]}
    plan = await explain(connection, "waiting", run=True, channels=[CHANNEL], **all_of_it, limit=1_000_000)
    read = [node for node in plan.nodes if node.get("Relation Name") == "log"]
    rows = [node["Actual Rows"] for node in read if node["Node Type"] != "Index Only Scan"]
    assert max(node["Actual Rows"] for node in read) > 10_000
    assert sum(rows) <= 1_002, plan.text


async def test_what_waits_on_many_channels_is_found_at_the_end_of_the_log(connection: Connection) -> None:
    """And parts of them are read by the same index, however many channels are asked for."""
    rows = await connection.execute(
        "SELECT epoch, seq FROM holdfast.log ORDER BY epoch DESC, seq DESC LIMIT 50"
    )
    *_, after = places = await rows.fetchall()
    channels = [CHANNEL, *(f"nowhere.{number}" for number in range(200))]
    names = ("epochs", "seqs", "until_epochs", "until_seqs")
    ranges = {name: [each] * 201 for name, each in zip(names, (*after, *places[0]), strict=True)}
    check(await explain(connection, "waiting", run=True, channels=channels, **ranges, limit=200), "log_pkey")
    check(await explain(connection, "parts", run=True, channels=channels, **ranges), "log_pkey")


async def test_stuck_walks_the_index_of_deadlines(connection: Connection) -> None:
    check(await explain(connection, "stuck", run=True, limit=50), "jobs_leased")


async def test_an_event_is_found_by_its_key(connection: Connection) -> None:
    names = {"channel": CHANNEL, "source": "default", "id": "e-33333"}
    check(await explain(connection, "find_jobs", run=True, **names), "keys_pkey", "jobs_pkey")


Call = Callable[[dict[str, list[int]]], dict[str, Any]]
INSIDE: dict[str, Call] = {
    "cancel": lambda _: {"channel": CHANNEL, "source": "default", "id": "e-33333", "consumer": None},
    "claim_ordered": lambda _: {"channel": CHANNEL, "consumer": "lanes", "limit": 50, "worker": "w"},
    "bury": lambda held: {
        **OF,
        **held,
        "reasons": ["terminal"] * 50,
        "errors": [error_entry(BOOM, 1)] * 50,
        "fingerprints": ["f"] * 50,
    },
    "requeue": lambda held: {**OF, "seq": held["seqs"][0]},
    "publish_one": lambda _: {
        "channel": CHANNEL,
        "id": "new",
        "data": b"{}",
        "source": "default",
        "type": "event",
        "key": "k-1",
        "time": None,
        "headers": None,
        "at": None,
        "priority": 0,
        "wake": False,
    },
    "publish": lambda _: {
        "channel": CHANNEL,
        "ids": ["new", "e-1"],
        "data": [b"{}", b"{}"],
        "keys": ["k-1", "scheduled-1"],
        "sources": None,
        "types": None,
        "times": None,
        "headers": None,
        "at": None,
        "priority": 0,
        "wake": False,
    },
}


@pytest.mark.parametrize("query", INSIDE)
async def test_statements_inside_functions_and_triggers_use_indexes_too(
    connection: Connection, query: str
) -> None:
    parameters = INSIDE[query](await leases(connection))
    async with watched(connection) as plans:
        await connection.execute(QUERIES[query], parameters)
    inner = [plan for plan in plans if is_about_a_big_table(plan)]
    assert inner, "it looked into a big table, and we saw it"
    for plan in inner:
        check(plan, few=5 * FEW)  # an ordered claim looks at 500 candidates at once


def is_about_a_big_table(plan: Plan) -> bool:
    return any(node.get("Relation Name") in {"jobs", "log", "keys"} for node in plan.nodes)


async def test_an_ordered_claim_behind_a_long_blocked_lane_costs_little(
    url: str, connection: Connection
) -> None:
    """Once they are known to wait, the events of a blocked key are not looked at again."""
    cursor = connection.cursor()
    lanes = {"channel": CHANNEL, "consumer": "lanes", "worker": "w"}
    for _ in range(3):
        await cursor.execute(QUERIES["claim_ordered"], lanes | {"limit": 6000})
    async with watched(connection) as plans:
        await cursor.execute(QUERIES["claim_ordered"], lanes | {"limit": 50})
    assert await cursor.fetchall() == [], "every key has its head at work"
    assert sum(plan.buffers for plan in plans) <= 2 * FEW


async def locked(connection: Connection) -> dict[str, Any]:
    """The sweeper's lock, as parameters."""
    [(token, _)] = await (
        await connection.execute(QUERIES["lock"], {"lock": "sweeper", "owner": "me", "ttl": MINUTE})
    ).fetchall()
    return {"lock": "sweeper", "token": token}


async def run(connection: Connection, query: str, **parameters: Any) -> tuple[list[Any], list[Plan]]:
    """What a query answers, and how everything inside it went about the big tables."""
    async with watched(connection) as plans:
        rows = await (await connection.execute(QUERIES[query], parameters)).fetchall()
    inner = [plan for plan in plans if is_about_a_big_table(plan)]
    assert inner, "it looked into a big table, and we saw it"
    for plan in inner:
        assert plan.scanned == set(), plan.text
    return rows, inner


EVERYTHING = {"epoch": 0, "seq": 0} | AT_THE_END


async def test_cuts_hop_over_the_primary_key(url: str, connection: Connection) -> None:
    rows, plans = await run(connection, "cuts", channel=CHANNEL, limit=50_000, every=5000, **EVERYTHING)
    assert [events for *_, events, _ in rows] == [5000] * 10
    hops = [plan for plan in plans if "Limit" in {node["Node Type"] for node in plan.nodes}]
    assert len(hops) == 80
    for plan in hops:
        assert {node["Node Type"] for node in plan.nodes} == {"Limit", "Index Only Scan"}, plan.text
    if "never" not in url:
        pages = sum(plan.buffers for plan in plans)
        assert pages <= FEW, "nothing but the index, and a look at the data at each hop"


async def test_a_page_walks_the_log_from_its_position_to_its_end(connection: Connection) -> None:
    [low, high] = await (
        await connection.execute(
            "SELECT epoch, seq FROM holdfast.log WHERE id IN ('e-25000', 'e-25050') ORDER BY seq"
        )
    ).fetchall()
    names = ("epoch", "seq", "until_epoch", "until_seq")
    places = dict(zip(names, (*low, *high), strict=True))
    check(await explain(connection, "page", run=True, channel=CHANNEL, limit=10_000, **places), "log_pkey")


async def test_the_ends_of_the_log_are_found_without_reading_it(connection: Connection) -> None:
    check(await explain(connection, "extent", run=True, channel=CHANNEL, **AT_THE_END), "log_pkey")


async def test_a_time_is_found_by_halving(connection: Connection) -> None:
    _, plans = await run(connection, "seek", channel=CHANNEL, time="infinity", **AT_THE_END)
    assert sum(plan.buffers for plan in plans) <= FEW


async def test_forget_walks_some_pages_and_no_index(connection: Connection) -> None:
    held = await locked(connection)
    [row], plans = await run(connection, "forget", keys="infinity", jobs="infinity", limit=100, **held)
    assert row == (100, 50)
    assert {"Tid Range Scan"} <= {node["Node Type"] for plan in plans for node in plan.nodes}
    # What forgettable() reads is in its own plan and in that of the statement that calls it.
    assert sum(plan.buffers for plan in plans) <= 2 * FEW
