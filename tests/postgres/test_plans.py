"""Plans: each statement finds its jobs by the index that was made for it, whatever the statistics say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from explain import Plan, explain, pooled, watched

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.arrays import NumberArray
from holdfast.backends.postgres.leases import error_entry
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Connection
from holdfast.contracts import WAITING_ONLY
from holdfast.embedded import Postgres
from holdfast.model.event import Event
from kit import BOOM, CHANNEL, CONSUMER, MINUTE, claim, claim_one, fail, subscribe

WAITING = 100_000
FEW = 1000  # pages that a batch of 50 may look at; a look at every job is 100,000
SOME = 2000  # rows that one step of a plan may look at; there are 100,000 of each kind
OF = {"channel": CHANNEL, "consumer": CONSUMER}
AT_THE_END = {"until_epoch": 9, "until_seq": 0}
TABLES = ("jobs", "log", "keys", "history", "frontiers", "ahead")

# As if everybody had done all events that are called old, 128 at a time.
HISTORY = """
    INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
                                  outcome, priority, attempts, abandonments, members)
    SELECT c.id, c.channel_id, l.epoch, min(l.seq), max(l.seq), 1, now(), now(), 'done', 0, 1, 0,
           array_agg(l.seq ORDER BY l.seq)
    FROM holdfast.consumers c
    JOIN (SELECT *, row_number() OVER (ORDER BY seq) / 128 AS block FROM holdfast.log WHERE id LIKE 'old-%') l
      ON l.channel_id = c.channel_id
    GROUP BY c.id, c.channel_id, l.epoch, l.block
"""


@pytest.fixture(scope="module", params=["never analyzed", "analyzed", "analyzed with one event"])
async def url(
    request: pytest.FixtureRequest, postgres: Postgres, admin: psycopg.Connection, template: str
) -> AsyncIterator[str]:
    """A database with 100,000 events that several consumers have before them, and as many done ones."""
    name = f"plans_{request.param.replace(' ', '_')}"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    address = postgres.database_url(name)
    with psycopg.connect(address, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(f"ALTER TABLE holdfast.{table} SET (autovacuum_enabled = false)")
        # Only tests have it, and it looks at each row.
        connection.execute("ALTER TABLE holdfast.jobs DISABLE TRIGGER no_overlap")
        if "one" in request.param:
            connection.execute("SELECT holdfast.publish(%s, '{}')", [CHANNEL])
            connection.execute("VACUUM ANALYZE")
    await fill(address)
    if request.param == "analyzed":
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    yield address
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def fill(address: str) -> None:
    """Of the consumers, one has nothing but what waits in the log, one a retry beside it, one a mark in the
    middle of it, and one is ordered and has taken all of it up. Another channel has scheduled jobs that will
    expire."""
    backend = PostgresBackend(address)
    await backend.open()
    for start in range(0, WAITING, 10_000):
        await backend.log.publish(CHANNEL, [Event(b"{}", f"old-{n}") for n in range(start, start + 10_000)])
    await subscribe(backend)
    await subscribe(backend, "retried")
    await subscribe(backend, "marked", expires_after="10d")
    await subscribe(backend, "lanes", ordered=True)
    await subscribe(backend, channel="later", expires_after="10d")
    for start in range(0, WAITING, 10_000):
        events = [Event(b"{}", f"e-{n}", key=f"k-{n % 5000}") for n in range(start, start + 10_000)]
        await backend.log.publish(CHANNEL, events)
    later = await backend.now() + 60 * MINUTE
    await backend.log.publish("later", [Event(b"{}", f"later-{n}") for n in range(1500)], at=later)
    await claim(backend, channel="later")
    assert await fail(backend, await claim_one(backend, consumer="retried"))
    assert await backend.leases.cancel(CHANNEL, "default", "e-77777", "marked")
    assert await claim(backend, 1, consumer="lanes")
    await backend.leases.complete(await claim(backend, 50))
    await claim(backend, 50)
    await claim(backend, 100)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(HISTORY)
    await backend.close()


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    async with pooled(url) as opened:
        yield opened


async def ask(connection: Connection, query: str, **parameters: Any) -> list[Any]:
    return await (await connection.execute(QUERIES[query], parameters)).fetchall()


async def number(connection: Connection, event_id: str) -> int:
    """The number of an event."""
    [(seq,)] = await (
        await connection.execute("SELECT seq FROM holdfast.keys WHERE id = %s", [event_id])
    ).fetchall()
    return int(seq)


async def consumer_id(connection: Connection, consumer: str = CONSUMER) -> int:
    cursor = await connection.execute("SELECT holdfast.consumer_id(%s, %s)", [CHANNEL, consumer])
    [(found,)] = await cursor.fetchall()
    return int(found)


async def leases(connection: Connection, members: int = 100) -> dict[str, list[int]]:
    """Fifty jobs that are leased, as a worker would name them: all of a row, or half of one."""
    cursor = await connection.execute(
        """SELECT m.seq, j.token FROM holdfast.jobs j CROSS JOIN LATERAL unnest(j.members) AS m (seq)
           WHERE j.consumer_id = %s AND j.n = %s ORDER BY m.seq LIMIT 50""",
        [await consumer_id(connection), members],
    )
    rows = await cursor.fetchall()
    assert len(rows) == 50
    return {"seqs": NumberArray(seq for seq, _ in rows), "tokens": NumberArray(token for _, token in rows)}


async def errors(connection: Connection, members: int = 100) -> dict[str, Any]:
    """Fifty leased jobs that fail for good."""
    error = error_entry(BOOM, 1)
    return await leases(connection, members) | {
        "reasons": ["terminal"] * 50,
        "errors": [error] * 50,
        "fingerprints": ["f"] * 50,
    }


async def dead(connection: Connection) -> NumberArray:
    """Ten dead jobs, among more."""
    burial = await errors(connection)
    await ask(connection, "bury", **OF, **burial)
    return NumberArray(burial["seqs"][:10])


def check(plan: Plan, *indexes: str, few: int = FEW) -> None:
    assert plan.scanned == set(), plan.text
    assert set(indexes) <= plan.indexes, plan.text
    assert plan.buffers <= few, f"{plan.buffers} pages: {plan.text}"


async def locked(connection: Connection) -> dict[str, Any]:
    """The sweeper's lock, as parameters."""
    [(token, _)] = await ask(connection, "lock", lock="sweeper", owner="me", ttl=MINUTE)
    return {"lock": "sweeper", "token": token}


async def run(connection: Connection, query: str, **parameters: Any) -> tuple[list[Any], list[Plan]]:
    """What a query answers, and how everything inside it went about the big tables."""
    async with watched(connection) as plans:
        rows = await ask(connection, query, **parameters)
    inner = [plan for plan in plans if is_about_a_big_table(plan)]
    assert inner, "it looked into a big table, and we saw it"
    for plan in inner:
        assert plan.scanned == set(), plan.text
    return rows, inner


def is_about_a_big_table(plan: Plan) -> bool:
    return any(node.get("Relation Name") in TABLES for node in plan.nodes)


Setup = Callable[[Connection], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    """One use of a query: its parameters, how many rows it answers, and what it must go by."""

    query: str
    setup: Setup
    rows: int
    indexes: set[str]
    few: int = FEW


CASES: dict[str, Case] = {}


def case(query: str, rows: int, *indexes: str, few: int = FEW) -> Callable[[Setup], Setup]:
    def add(setup: Setup) -> Setup:
        CASES[setup.__name__.strip("_")] = Case(query, setup, rows, set(indexes), few)
        return setup

    return add


CLAIM = {"channel": CHANNEL, "limit": 50, "worker": "w"}


@case("claim", 50, "log_take_up")
async def _claim_from_the_log(connection: Connection) -> dict[str, Any]:
    return CLAIM | {"consumer": CONSUMER}


@case("claim", 50, "log_take_up", "jobs_ready")
async def _claim_of_a_retry_beside_the_log(connection: Connection) -> dict[str, Any]:
    return CLAIM | {"consumer": "retried"}


@case("claim", 50, "log_take_up", "ahead_pkey")
async def _claim_before_a_mark(connection: Connection) -> dict[str, Any]:
    return CLAIM | {"consumer": "marked"}


# It looks at 500 candidates at once, by three indexes.
@case("claim", 50, "jobs_ready", "jobs_ordered", few=10 * FEW)
async def _claim_in_order(connection: Connection) -> dict[str, Any]:
    return CLAIM | {"consumer": "lanes"}


@case("complete", 0, "jobs_pkey")
async def _complete_a_row(connection: Connection) -> dict[str, Any]:
    held = await leases(connection, 50)
    return {**OF, "tokens": held["tokens"][:1], "counts": [50], "seqs": held["seqs"]}


@case("complete", 0, "jobs_pkey")
async def _complete_half_a_row(connection: Connection) -> dict[str, Any]:
    held = await leases(connection)
    return {**OF, "tokens": held["tokens"][:1], "counts": [50], "seqs": held["seqs"]}


@case("extend", 50, "jobs_pkey")
async def _extend_a_row(connection: Connection) -> dict[str, Any]:
    return {**OF, **await leases(connection, 50), "by": MINUTE}


@case("extend", 50, "jobs_pkey", "log_pkey", few=2 * FEW)
async def _extend_half_a_row(connection: Connection) -> dict[str, Any]:
    return {**OF, **await leases(connection), "by": MINUTE}


@case("retry", 50, "jobs_pkey", "log_pkey", few=2 * FEW)
async def _retry_half_a_row(connection: Connection) -> dict[str, Any]:
    error = error_entry(BOOM, 1)
    return {**OF, **await leases(connection), "delays": [MINUTE] * 50, "errors": [error] * 50}


@case("bury", 50, "jobs_pkey", "log_pkey", few=2 * FEW)
async def _bury_half_a_row(connection: Connection) -> dict[str, Any]:
    return {**OF, **await errors(connection)}


@case("bury", 50, "jobs_pkey", "log_pkey", few=2 * FEW)
async def _bury_a_row(connection: Connection) -> dict[str, Any]:
    return {**OF, **await errors(connection, 50)}


@case("abandon", 1, "jobs_pkey", "log_pkey", few=2 * FEW)
async def _abandon_half_a_row(connection: Connection) -> dict[str, Any]:
    await connection.execute("UPDATE holdfast.store SET clock_offset = '1 day'")
    owners = [await consumer_id(connection)] * 50
    return {"consumers": owners, **await leases(connection), "errors": [error_entry(BOOM, 1)] * 50}


@case("promote", 1, "log_pkey", "ahead_pkey")
async def _promote_what_waits_in_the_log(connection: Connection) -> dict[str, Any]:
    return {
        "consumers": [await consumer_id(connection)],
        "seqs": NumberArray([await number(connection, "e-33333")]),
    }


ONLY_WAITING = WAITING_ONLY._asdict()


@case("cancel", 1, "keys_pkey", "log_pkey")
async def _cancel_what_waits(connection: Connection) -> dict[str, Any]:
    return {"channel": CHANNEL, "source": "default", "id": "e-33333", "consumer": None, **ONLY_WAITING}


@case("cancel", 1, "keys_pkey", "log_pkey")
async def _cancel_what_is_done(connection: Connection) -> dict[str, Any]:
    return {"channel": CHANNEL, "source": "default", "id": "old-33333", "consumer": None, **ONLY_WAITING}


EMPTY = {**OF, "limit": 50}


@case("cancel_waiting", 1, "log_take_up", "log_pkey")
async def _cancel_all_that_waits_in_the_log(connection: Connection) -> dict[str, Any]:
    return EMPTY


@case("cancel_waiting", 1, "jobs_pkey", "log_take_up")
async def _cancel_a_retry_and_what_waits_in_the_log(connection: Connection) -> dict[str, Any]:
    return EMPTY | {"consumer": "retried"}


@case("cancel_waiting", 1, "log_take_up", "log_pkey", "ahead_pkey")
async def _cancel_all_that_waits_beside_a_mark(connection: Connection) -> dict[str, Any]:
    return EMPTY | {"consumer": "marked"}


@case("cancel_waiting", 1, "jobs_pkey", few=2 * FEW)
async def _cancel_all_that_was_taken_up_in_order(connection: Connection) -> dict[str, Any]:
    return EMPTY | {"consumer": "lanes"}


@case("requeue", 1, "log_pkey")
async def _requeue_what_waits(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": await number(connection, "e-33333")}


@case("requeue", 1, "jobs_pkey", "log_pkey")
async def _requeue_a_member(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": (await leases(connection))["seqs"][7]}


@case("requeue", 1, "log_pkey")
async def _requeue_what_is_done(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": await number(connection, "old-33333")}


@case("requeue", 1, "dead_letters_pkey")
async def _requeue_what_is_dead(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": (await dead(connection))[0]}


@case("job", 1, "log_pkey", "jobs_pkey", few=FEW // 10)
async def _job_that_waits(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": await number(connection, "e-33333")}


@case("job", 1, "jobs_pkey", few=FEW // 10)
async def _job_of_a_row(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": (await leases(connection))["seqs"][7]}


@case("job", 1, "history_members", few=FEW // 10)
async def _job_that_is_done(connection: Connection) -> dict[str, Any]:
    return {**OF, "seq": await number(connection, "old-33333")}


@case("find_jobs", 4, "keys_pkey", "log_pkey", "jobs_pkey", few=FEW // 5)
async def _find_jobs_that_wait(connection: Connection) -> dict[str, Any]:
    return {"channel": CHANNEL, "source": "default", "id": "e-33333"}


@case("find_jobs", 4, "keys_pkey", "history_members", few=FEW // 5)
async def _find_jobs_that_are_done(connection: Connection) -> dict[str, Any]:
    return {"channel": CHANNEL, "source": "default", "id": "old-33333"}


@case("due", 0, "log_take_up", "jobs_leased", "jobs_scheduled", "jobs_expiring", few=FEW // 2)
async def _due_while_all_wait(connection: Connection) -> dict[str, Any]:
    return {"limit": 500}


@case("due", 150, "jobs_leased", few=5 * FEW)
async def _due_when_leases_are_over(connection: Connection) -> dict[str, Any]:
    await connection.execute("UPDATE holdfast.store SET clock_offset = '30 minutes'")
    return {"limit": 150}


@case("due", 50 + 50 + 50, "log_take_up", "log_pkey", few=5 * FEW)
async def _due_when_all_expired(connection: Connection) -> dict[str, Any]:
    await connection.execute("UPDATE holdfast.store SET clock_offset = '11 days'")
    return {"limit": 50}


@case("backlogs", 5, "log_take_up", "jobs_ready", few=10 * FEW)
async def _backlogs(connection: Connection) -> dict[str, Any]:
    return {"limit": 500}


@case("job_times", 5, "log_take_up", "jobs_ready")
async def _job_times(connection: Connection) -> dict[str, Any]:
    return {}


@case("load", 1, "log_take_up", few=20 * FEW)  # of a consumer with a mark a thousand events are looked at
async def _load(connection: Connection) -> dict[str, Any]:
    return {}


@case("stuck", 0, "jobs_leased", few=FEW // 10)
async def _stuck(connection: Connection) -> dict[str, Any]:
    return {"limit": 50}


TRIM = {"channel": CHANNEL, "before": "infinity", "ignore": [], "groups": [], **AT_THE_END}


@case("trim", 1, "log_pkey", "log_take_up", few=2 * FEW)
async def _trim_what_all_have_done(connection: Connection) -> dict[str, Any]:
    return TRIM | {"limit": 50} | await locked(connection)


@case("trim", 1, "log_pkey", "log_take_up", few=2 * FEW)
async def _trim_what_all_but_one_have_done(connection: Connection) -> dict[str, Any]:
    """It is over before the first event that somebody needs, however large a step may be."""
    await connection.execute(
        """UPDATE holdfast.channels c SET trimmed_epoch = l.epoch, trimmed_seq = l.seq
           FROM holdfast.log l WHERE l.channel_id = c.id AND l.id = 'old-99990'"""
    )
    return TRIM | {"limit": 10_000} | await locked(connection)


@case("purge", 10, "dead_letters_pkey")
async def _purge(connection: Connection) -> dict[str, Any]:
    return {**OF, "seqs": await dead(connection)}


@case("purge_dead", 1, "dead_letters_died")
async def _purge_dead(connection: Connection) -> dict[str, Any]:
    await dead(connection)
    return {"channel": CHANNEL, "before": "infinity", "limit": 20, **await locked(connection)}


@case("revive", 10, "dead_letters_pkey")
async def _revive(connection: Connection) -> dict[str, Any]:
    return {**OF, "seqs": await dead(connection), "data": None}


@case("remove_step", 1, "jobs_pkey", "history_members")
async def _remove_step(connection: Connection) -> dict[str, Any]:
    [(removed,)] = await ask(connection, "begin_removal", channel=CHANNEL, consumer="retried")
    return {"consumer": removed, "limit": 50}


NEW = {"channel": CHANNEL, "at": None, "priority": 0, "wake": False}


@case("publish_one", 1)
async def _publish_one(connection: Connection) -> dict[str, Any]:
    single = {"id": "new", "data": b"{}", "source": "default", "type": "event", "key": "k-1"}
    return NEW | single | {"time": None, "headers": None}


@case("publish", 1, "keys_pkey")
async def _publish_with_a_repeat(connection: Connection) -> dict[str, Any]:
    batch = {"ids": ["new", "e-1"], "data": [b"{}", b"{}"], "keys": ["k-1", "k-1"]}
    return NEW | batch | {"sources": None, "types": None, "times": None, "headers": None}


@pytest.mark.parametrize("name", CASES)
async def test_every_statement_inside_finds_its_rows_by_an_index(connection: Connection, name: str) -> None:
    case = CASES[name]
    parameters = await case.setup(connection)
    async with connection.transaction(force_rollback=True):
        await ask(connection, case.query, **parameters)  # what it needs of the catalog is not counted
    async with watched(connection) as plans:
        rows = await ask(connection, case.query, **parameters)
    assert len(rows) == case.rows
    assert case.indexes <= {index for plan in plans for index in plan.indexes}
    for plan in plans:
        assert plan.scanned == set(), plan.text
        assert plan.looks <= SOME, f"{plan.looks} rows: {plan.text}"
        assert plan.buffers <= case.few, f"{plan.buffers} pages: {plan.text}"


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


async def test_an_ordered_claim_behind_a_long_blocked_lane_costs_little(
    url: str, connection: Connection
) -> None:
    """Once they are known to wait, the events of a blocked key are not looked at again."""
    lanes = {"channel": CHANNEL, "consumer": "lanes", "worker": "w"}
    while await ask(connection, "claim", limit=6000, **lanes):
        pass
    async with watched(connection) as plans:
        rows = await ask(connection, "claim", limit=50, **lanes)
    assert rows == [], "every key has its head at work"
    assert sum(plan.buffers for plan in plans if is_about_a_big_table(plan)) <= 5 * FEW


EVERYTHING = {"epoch": 0, "seq": 0} | AT_THE_END


async def test_cuts_hop_over_the_primary_key(url: str, connection: Connection) -> None:
    rows, plans = await run(connection, "cuts", channel=CHANNEL, limit=50_000, every=5000, **EVERYTHING)
    assert [events for *_, events, _ in rows] == [5000] * 10
    hops = [plan for plan in plans if "Limit" in {node["Node Type"] for node in plan.nodes}]
    assert len(hops) == 80
    for plan in hops:
        assert {node["Node Type"] for node in plan.nodes} == {"Limit", "Index Only Scan"}, plan.text
    if url.endswith("plans_analyzed"):  # and vacuumed
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
    [(in_rows,)] = await (
        await connection.execute(
            "SELECT sum(n) FROM (SELECT n FROM holdfast.history ORDER BY ctid LIMIT 100) h"
        )
    ).fetchall()
    [row], plans = await run(connection, "forget", keys="infinity", jobs="infinity", limit=100, **held)
    assert row == (100, in_rows, True)
    assert {"Tid Range Scan"} <= {node["Node Type"] for plan in plans for node in plan.nodes}
    # What forgettable() reads is in its own plan and in that of the statement that calls it.
    assert sum(plan.buffers for plan in plans) <= 2 * FEW
