"""Frontiers: the log is taken up in order, nothing is skipped and nothing twice, whoever works beside it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from explain import pooled, watched

import stops
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.event import Event
from holdfast.model.job import Retry
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    complete,
    ids,
    publish,
    record,
    states,
    step,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
DEAD = "dead"
MARKS = "SELECT count(*) FROM holdfast.ahead"
FRONTIERS = "SELECT count(*) FROM holdfast.frontiers"
EVENTS = [f"e-{number}" for number in range(8)]


@pytest.fixture
async def lock(backend: PostgresBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 600 * MINUTE)
    assert held is not None
    return held


@pytest.fixture
async def stoppable(database: str, backend: PostgresBackend, sql: Sql) -> AsyncIterator[PostgresBackend]:
    """Another backend on the same database, whose one session stops where it is told to."""
    stops.install(sql)
    opened = PostgresBackend(database, connections=1)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.concurrency
@pytest.mark.parametrize("first", ["cancelled", "too early"])
async def test_a_trim_of_what_nobody_gets_moves_no_place_of_a_take_up(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, lock: Lock, first: str
) -> None:
    """What is skipped is in nobody's need: it may be trimmed between any two statements of the take-up."""
    for point in itertools.count(1):
        channel = f"orders-{point}"
        if first == "cancelled":
            await subscribe(backend, channel=channel)
            await publish(backend, "first", channel=channel)
            assert await backend.leases.cancel(channel, "default", "first", None) == 1
        else:
            await publish(backend, "first", channel=channel)
            await subscribe(backend, channel=channel, start=await backend.now())
        await publish(backend, *EVENTS, channel=channel)
        before = await backend.now() + MINUTE
        await stops.stop_at(stoppable, point)
        (jobs, _), stopped = await stops.while_stopped(
            database,
            claim(stoppable, 3, channel=channel),
            backend.retention.trim(channel, before, 100, lock),
        )
        await stops.stop_at(stoppable, 0)
        assert ids([*jobs, *await claim(backend, channel=channel)]) == EVENTS, point
        if not stopped:
            break
    assert point > 10, "there are points at which it stopped"


KINDS = ["plain", "marked", "expiring", "ordered"]
OTHERS = [
    "cancel",
    "empty",
    "requeue",
    "trim",
    "subscribe",
    "complete",
    "release",
    "claim",
    "lifecycle",
    "publish",
]
TELLING = {
    ("marked", "cancel"),
    ("plain", "empty"),
    ("ordered", "empty"),
    ("expiring", "requeue"),
    ("marked", "trim"),
    ("plain", "subscribe"),
    ("ordered", "complete"),
    ("plain", "release"),
    ("plain", "claim"),
    ("expiring", "lifecycle"),
    ("ordered", "publish"),
}
"""Of each verb the kind of consumer that has the most to lose; the rest takes minutes."""


@pytest.mark.concurrency
@pytest.mark.parametrize(
    ("kind", "other"),
    [
        pytest.param(*pair, marks=() if pair in TELLING else pytest.mark.slow)
        for pair in itertools.product(KINDS, OTHERS)
    ],
)
async def test_a_claim_that_is_stopped_anywhere_neither_skips_nor_repeats(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, lock: Lock, other: str, kind: str
) -> None:
    for point in itertools.count(1):
        channel = f"orders-{point}"
        expires_after = "10h" if kind == "expiring" else None
        await subscribe(backend, channel=channel, expires_after=expires_after, ordered=kind == "ordered")
        for each in EVENTS[:4]:
            await publish(backend, each, channel=channel)
        await publish(backend, *EVENTS[4:], channel=channel)
        held = await claim(backend, 2, channel=channel)
        number = (await record(backend, "e-4", channel=channel)).id
        cancelled = await backend.leases.cancel(channel, "default", "e-5", None) if kind == "marked" else 0
        calls = {
            "cancel": lambda: backend.leases.cancel(channel, "default", "e-4", None),  # noqa: B023
            "empty": lambda: backend.leases.cancel_waiting(channel, CONSUMER, 100),  # noqa: B023
            "requeue": lambda: backend.leases.requeue(channel, CONSUMER, number),  # noqa: B023
            "trim": lambda: backend.retention.trim(channel, lock.until, 100, lock),  # noqa: B023
            "subscribe": lambda: subscribe(backend, "late", channel=channel, start="earliest"),  # noqa: B023
            "complete": lambda: backend.leases.complete(held[:1]),  # noqa: B023
            "release": lambda: backend.leases.retry([Retry(held[0], None, None)]),  # noqa: B023
            "claim": lambda: claim(backend, 3, channel=channel),  # noqa: B023
            "lifecycle": lambda: step(backend),
            "publish": lambda: publish(backend, "new", channel=channel),  # noqa: B023
        }
        await stops.stop_at(stoppable, point)
        (jobs, result), stopped = await stops.while_stopped(
            database, claim(stoppable, 3, channel=channel), calls[other]()
        )
        await stops.stop_at(stoppable, 0)
        got = ids([*held, *jobs, *await claim(backend, channel=channel)])
        wanted = [each for each in EVENTS if not (cancelled and each == "e-5")]
        match other:
            case "claim":
                got += ids(result)
            case "cancel" if result:
                wanted.remove("e-4")
            case "empty":
                assert result == len(wanted) - len(got), point
                wanted = [*got]
                assert len(set(got)) == len(got), point
            case "requeue" if got.count("e-4") == 2:  # it was leased before, and is again
                got.remove("e-4")
            case "release":
                wanted.append("e-0")
            case "publish":
                wanted.append("new")
            case "subscribe":
                assert sorted(ids(await claim(backend, consumer="late", channel=channel))) == EVENTS, point
        assert sorted(got) == sorted(wanted), point
        if not stopped:
            break
    assert point > 10, "there are points at which it stopped"


async def test_a_mark_goes_with_the_event_that_is_trimmed(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    """The take-up would never come to it, and look twice at each event for ever."""
    await subscribe(backend)
    await publish(backend, *EVENTS)
    assert await backend.leases.cancel(CHANNEL, "default", "e-0", None) == 1
    assert sql.execute(MARKS).fetchone() == (1,)
    trimmed = await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 100, lock)
    assert trimmed.removed == 1
    assert sql.execute(MARKS).fetchone() == (0,)
    assert ids(await claim(backend)) == EVENTS[1:]


async def test_an_event_that_a_dead_letter_kept_waits_for_who_came_later(
    backend: PostgresBackend, lock: Lock
) -> None:
    """It stands before the trimmed place, and has no row of the new consumer."""
    await subscribe(backend)
    await publish(backend, "dead", "done")
    for job in await claim(backend):
        assert await (bury if job.event.id == "dead" else complete)(backend, job)
    later = await backend.now() + MINUTE
    assert (await backend.retention.trim(CHANNEL, later, 100, lock)).removed == 1
    await subscribe(backend, "late", start="earliest")
    assert await backend.retention.purge_dead(CHANNEL, later, 10, lock) == {CONSUMER: 1}
    assert (await backend.retention.trim(CHANNEL, later, 100, lock)).removed == 0
    [job] = await claim(backend, consumer="late")
    assert job.event.id == "dead"
    assert await complete(backend, job)
    assert (await backend.retention.trim(CHANNEL, later, 100, lock)).removed == 1


async def test_what_expired_at_the_beginning_of_the_backlog_leaves_no_marks(
    backend: PostgresBackend, sql: Sql
) -> None:
    """Also where it was published after the window that the frontier has used up."""
    await subscribe(backend, expires_after="5m")
    await publish(backend, "taken")
    assert ids(await claim(backend)) == ["taken"]
    await publish(backend, *(f"late-{number}" for number in range(1200)))
    await backend.advance(6 * MINUTE)
    while (await step(backend)).total:
        assert sql.execute(MARKS).fetchone() == (0,)
    assert await claim(backend) == []


def numbered(name: str, count: int) -> list[Event]:
    return [Event(b"{}", f"{name}-{number}") for number in range(count)]


class Publisher:
    """Publishes in all the ways there are, and knows what it has committed."""

    def __init__(self, backend: PostgresBackend, url: str, name: str) -> None:
        self._backend, self._url, self._name = backend, url, name
        self._dice = random.Random(name)
        self.committed: list[str] = []

    async def run(self, rounds: int) -> None:
        for turn in range(rounds):
            name = f"{self._name}-{turn}"
            match self._dice.choice(["single", "batch", "bulk", "open", "open", "open"]):
                case "single":
                    await self._publish(numbered(name, 1))
                case "batch":
                    await self._publish(numbered(name, self._dice.randint(2, 30)))
                case "bulk":
                    await self._publish(numbered(name, 210))
                case _:
                    await self._in_a_transaction(name)

    async def _publish(self, events: list[Event]) -> None:
        await self._backend.log.publish(CHANNEL, events, priority=self._dice.choice([0, 0, 0, 2]))
        self.committed += [event.id for event in events]

    async def _in_a_transaction(self, name: str) -> None:
        dice, names = self._dice, list[str]()
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            await connection.execute("SELECT 1")  # what follows are savepoints
            if dice.random() < 0.5:
                await connection.execute("SELECT pg_current_xact_id()")
                await asyncio.sleep(dice.random() * 0.1)
            for part in range(dice.randint(1, 4)):
                kept = dice.random() < 0.7
                events = numbered(f"{name}-{part}", dice.choice([1, 3, 40]))
                priority = dice.choice([0, 0, 0, 1])
                async with connection.transaction(force_rollback=not kept):
                    await self._backend.log.publish(CHANNEL, events, priority=priority, connection=connection)
                names += [event.id for event in events if kept]
                await asyncio.sleep(dice.random() * 0.05)
            if dice.random() < 0.25:
                await connection.rollback()
                return
            await connection.commit()
        self.committed += names


@pytest.mark.concurrency
async def test_publishers_of_every_kind_beside_claims_of_every_size_lose_nothing(
    database: str, backend: PostgresBackend, sql: Sql
) -> None:
    consumers = (CONSUMER, "mail")
    for consumer in consumers:
        await subscribe(backend, consumer, max_attempts="unlimited", backoff=["0s"])
    publishers = [Publisher(backend, database, name) for name in ("p", "q", "r")]
    held: dict[str, set[str]] = {consumer: set() for consumer in consumers}
    done: dict[str, list[str]] = {consumer: [] for consumer in consumers}
    published = asyncio.Event()

    async def work(consumer: str, limit: int) -> None:
        dice = random.Random(limit)
        while not published.is_set() or len(done[consumer]) < sum(len(p.committed) for p in publishers):
            jobs = await claim(backend, limit, consumer=consumer)
            assert held[consumer].isdisjoint(ids(jobs)), "nobody has what another one has"
            held[consumer].update(ids(jobs))
            dice.shuffle(jobs)
            cut = dice.randint(0, len(jobs)) if dice.random() < 0.5 else len(jobs)
            assert all(await backend.leases.complete(jobs[:cut]))
            done[consumer] += ids(jobs[:cut])
            back = [Retry(job, *dice.choice([(None, None), (timedelta(0), BOOM)])) for job in jobs[cut:]]
            held[consumer].difference_update(ids(jobs[cut:]))
            assert all(await backend.leases.retry(back))
            await asyncio.sleep(0 if jobs else 0.01)

    async def publish_all() -> None:
        await asyncio.gather(*(publisher.run(30) for publisher in publishers))
        published.set()

    sizes = [(CONSUMER, 1), (CONSUMER, 500), ("mail", 20), ("mail", 500)]
    async with asyncio.timeout(60):
        await asyncio.gather(publish_all(), *(work(*each) for each in sizes))
    committed = sorted(name for publisher in publishers for name in publisher.committed)
    for consumer in consumers:
        assert sorted(done[consumer]) == committed
        assert await claim(backend, consumer=consumer) == []
        assert await states(backend, consumer=consumer) == {State.DONE: len(committed)}
    assert sql.execute(FRONTIERS).fetchone() == (4,)


@pytest.mark.parametrize("priority", [0, 1])
async def test_a_window_of_an_old_epoch_is_finished_before_the_next_one_begins(
    backend: PostgresBackend, sql: Sql, priority: int
) -> None:
    """Transaction ids of the new epoch may be lower than those of the old one, as on another server."""
    for each in EVENTS[:4]:
        await publish(backend, each, priority=priority)
    await subscribe(backend, start="earliest")
    assert ids(await claim(backend, 1)) == EVENTS[:1]
    sql.execute("UPDATE holdfast.store SET epoch = epoch + 1")
    for each in EVENTS[4:6]:
        await publish(backend, each, priority=priority)
    sql.execute("UPDATE holdfast.log SET tx = (seq % 131071 + 10)::text::xid8 WHERE epoch = 2")
    assert await states(backend) == {State.LEASED: 1, State.READY: 5}
    await subscribe(backend, "late", start="earliest")
    assert ids(await claim(backend, 1)) == EVENTS[1:2]
    assert ids(await claim(backend, 3)) == EVENTS[2:5]
    await publish(backend, *EVENTS[6:], priority=priority)
    assert await states(backend) == {State.LEASED: 5, State.READY: 3}
    assert ids(await claim(backend)) == EVENTS[5:]
    assert ids(await claim(backend, consumer="late")) == EVENTS
    assert await claim(backend) == []


async def test_a_consumer_that_is_up_to_date_goes_on_in_the_next_epoch(
    backend: PostgresBackend, sql: Sql
) -> None:
    await subscribe(backend)
    for epoch in range(4):
        await publish(backend, f"e-{epoch}")
        sql.execute("UPDATE holdfast.log SET tx = (100 - epoch)::text::xid8 WHERE epoch > 1")
        assert ids(await claim(backend)) == [f"e-{epoch}"]
        sql.execute("UPDATE holdfast.store SET epoch = epoch + 1")
        assert await claim(backend) == []


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("order", [1, -1])
async def test_a_dead_letter_reaches_a_consumer_whose_jobs_are_buried_with_it(
    backend: PostgresBackend, order: int, at_once: bool
) -> None:
    """Its frontier is looked at in the transaction that publishes, before it does."""
    await backend.channels.create(DEAD)
    policies: list[tuple[str, dict[str, Any]]] = [(CHANNEL, {"dead_letter": DEAD}), (DEAD, {})]
    for channel, policy in policies[::order]:
        await subscribe(backend, channel=channel, expires_after="5m", **policy)
        for each in ("first", *EVENTS):
            await publish(backend, each, channel=channel)
        if not at_once:
            assert ids(await claim(backend, 1, channel=channel)) == ["first"]
            assert ids(await claim(backend, 2, channel=channel)) == EVENTS[:2]
    await backend.advance(6 * MINUTE)
    steps = [(await step(backend)).buried for _ in range(3)]
    assert sum(steps) == 2 * len(EVENTS) + 2
    letters = await claim(backend, channel=DEAD)
    wanted = ["first", *EVENTS]
    assert sorted(job.event.headers["holdfast-id"] for job in letters) == sorted(wanted)
    assert await claim(backend, channel=DEAD) == []


@pytest.mark.parametrize("assigned", [False, True])
async def test_what_a_transaction_publishes_is_new_when_it_is_committed(
    backend: PostgresBackend, transaction: Sql, assigned: bool
) -> None:
    """Also to a frontier that the same transaction has moved before, between or after."""
    await subscribe(backend)
    await publish(backend, "there")
    published = "SELECT holdfast.publish('orders', '1', id => %s)"
    claimed = "SELECT id FROM holdfast.claim('orders', 'billing', 10, 'w')"
    if assigned:
        transaction.execute("SELECT pg_current_xact_id()")
    assert transaction.execute(claimed).fetchall() == [("there",)]
    transaction.execute(published, ["own-1"])
    await publish(backend, "meanwhile")
    assert transaction.execute(claimed).fetchall() == [("meanwhile",)]
    transaction.execute(published, ["own-2"])
    assert transaction.execute(claimed).fetchall() == []
    transaction.commit()
    assert ids(await claim(backend)) == ["own-1", "own-2"]


@pytest.mark.parametrize("priority", [0, 1])
async def test_a_start_at_a_time_gives_what_was_published_since(
    backend: PostgresBackend, sql: Sql, priority: int
) -> None:
    beginning = await backend.now()
    for each in EVENTS[:3]:
        await publish(backend, each, priority=priority)
    middle = await backend.now()
    for each in EVENTS[3:6]:
        await publish(backend, each, priority=priority)
    starts = {
        "earliest": ("earliest", 0),
        "before": (beginning - MINUTE, 0),
        "beginning": (beginning, 0),
        "middle": (middle, 3),
        "now": (await backend.now(), 6),
        "later": (await backend.now() + MINUTE, 6),
        "latest": ("latest", 6),
    }
    for consumer, (start, _) in starts.items():
        await subscribe(backend, consumer, start=start)
    await publish(backend, *EVENTS[6:], priority=priority)
    for consumer, (_, first) in starts.items():
        assert await states(backend, consumer=consumer) == {State.READY: len(EVENTS) - first}, consumer
        assert ids(await claim(backend, consumer=consumer)) == EVENTS[first:], consumer


async def test_frontiers_do_not_pile_up(backend: PostgresBackend, transaction: Sql, sql: Sql) -> None:
    """The newest counts, and replaces the one before; also where publishes are held open all the time."""
    await subscribe(backend)
    transaction.execute("SELECT holdfast.publish('orders', '1', id => 'held')")
    for turn in range(30):
        await publish(backend, f"a-{turn}", f"b-{turn}")
        await publish(backend, f"c-{turn}", priority=1)
        assert len(await claim(backend, 2)) == 2
        assert sql.execute(FRONTIERS).fetchone() == (2,)
    transaction.commit()
    assert len(await claim(backend)) == 31


async def test_what_comes_late_in_one_transaction_is_looked_at_once(
    database: str, backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    """A claim in the middle of many events that were committed late begins where the one before ended, and a
    count of them ends at its limit."""
    await subscribe(backend)
    names = [f"late-{number}" for number in range(20_000)]
    events = "SELECT epoch FROM holdfast.publish_many(%s, %s, array_fill('{}'::bytea, ARRAY[%s]))"
    transaction.execute(events, [CHANNEL, names, len(names)])
    # A claim at that time has not seen them, and another transaction has ended since they began.
    await publish(backend, "early")
    assert ids(await claim(backend)) == ["early"]
    transaction.commit()
    assert [each.live[State.READY] for each in await backend.channels.backlogs(100)] == [100]
    assert await states(backend) == {State.READY: 20_000, State.LEASED: 1}
    costs = [await looks(database, "backlogs", limit=100)]
    assert ids(await claim(backend, 19_000)) == names[:19_000]
    of = {"channel": CHANNEL, "consumer": CONSUMER}
    costs += [
        await looks(database, "backlogs", limit=100),
        await looks(database, "claim", limit=10, worker="me", **of),
    ]
    assert max(costs) < 1000
    # The positive control: this measure sees whoever looks at all of them.
    assert await looks(database, "states", consumer=1) >= 1000
    assert await states(backend) == {State.READY: 1000, State.LEASED: 19_001}
    assert ids(await claim(backend, 2000)) == names[19_000:]


@pytest.mark.parametrize("published", ["before", "both", "after", "nothing"])
async def test_a_start_at_a_time_passes_what_is_older_at_once(
    database: str, backend: PostgresBackend, transaction: Sql, published: str
) -> None:
    """A consumer that starts at a time in a long log: the first look at what waits walks over nothing that
    does not. What an open transaction has published, and what is published later, is taken up as well."""
    if published in ("before", "both"):
        for start in range(0, 20_000, 5000):
            await backend.log.publish(CHANNEL, [Event(b"{}", f"old-{n}") for n in range(start, start + 5000)])
        await publish(backend, "old special", priority=1)
    await backend.advance(60 * MINUTE)
    if published == "both":
        await publish(backend, "before start")
    start = await backend.now()
    await backend.channels.create(CHANNEL)
    transaction.execute("SELECT holdfast.publish(%s, '{}', id => 'open')", [CHANNEL])
    wanted = []
    if published in ("both", "after"):
        await publish(backend, "plain")
        await publish(backend, "special", priority=1)
        wanted = ["special", "plain"]
    await subscribe(backend, start=start)
    assert await states(backend) == ({State.READY: len(wanted)} if wanted else {})
    assert await looks(database, "backlogs", limit=100) < 1000
    assert await looks(database, "claim", limit=10, worker="me", channel=CHANNEL, consumer=CONSUMER) < 1000
    await publish(backend, "later")
    assert ids(await claim(backend)) == [*wanted, "later"]
    transaction.commit()
    assert ids(await claim(backend)) == ["open"]


@pytest.mark.concurrency
@pytest.mark.parametrize("special", ["first", "second"])
async def test_events_of_one_key_that_commit_during_a_claim_keep_their_order(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, special: str
) -> None:
    """An ordered claim has two frontiers, for special events and for the others. Whoever commits between the
    moves of these is not seen by halves."""
    for point in itertools.count(1):
        channel = f"orders-{point}"
        await subscribe(backend, channel=channel, ordered=True)
        await publish(backend, "special", channel=channel, key="s", priority=2)
        await publish(backend, "plain", channel=channel, key="p")

        async def two(channel: str = channel) -> None:
            await publish(backend, "first", channel=channel, key="k", priority=int(special == "first"))
            await publish(backend, "second", channel=channel, key="k", priority=int(special == "second"))

        await stops.stop_at(stoppable, point)
        (jobs, _), stopped = await stops.while_stopped(database, claim(stoppable, channel=channel), two())
        await stops.stop_at(stoppable, 0)
        rest = [] if "first" in ids(jobs) else ["first"]
        assert "second" not in ids(jobs), point
        assert ids(await claim(backend, channel=channel)) == rest, point
        if not stopped:
            break
    assert point > 10, "there are points at which it stopped"


@pytest.mark.parametrize("kind", ["scheduled", "prioritised", "ordered", "ordered and prioritised"])
async def test_a_claim_has_jobs_while_more_is_published_than_one_call_takes_up(
    backend: PostgresBackend, database: str, kind: str
) -> None:
    """Between any two calls of a claim somebody publishes more than one call makes rows of. What is ready
    must not wait for the end of that."""
    ordered = kind.startswith("ordered")
    await subscribe(backend, ordered=ordered)
    await publish(backend, "plain", key="l")
    at = await backend.now() + 60 * MINUTE if kind == "scheduled" else None
    parameters = {"channel": CHANNEL, "consumer": CONSUMER, "limit": 10, "worker": "me"}
    async with pooled(database) as connection:
        for turn in range(20):  # six, where a second is enough for each call
            events = [Event(b"{}", f"e-{turn}-{number}", key="k") for number in range(22_000)]
            await backend.log.publish(CHANNEL, events, at=at, priority=int(kind.endswith("prioritised")))
            rows = await (await connection.execute(QUERIES["claim"], parameters)).fetchall()
            if rows and rows[0][1] is not None:
                break
        assert rows[0][1] is not None
        found = {row[7] for row in rows}
        if ordered:  # the first of each key, and of a higher priority alone where very many wait behind one
            assert found == {"e-0-0", "plain"} or (kind.endswith("prioritised") and found == {"e-0-0"})
        else:
            assert len(found) == (1 if kind == "scheduled" else 10)


async def test_a_claim_on_a_slow_server_takes_up_less_at_a_time(backend: PostgresBackend, sql: Sql) -> None:
    """Whoever calls it hangs up after some seconds, and undoes what it has done by then."""
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(b"{}", f"e-{number}", key="k") for number in range(20_000)])
    sql.execute("""
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END';
        CREATE TRIGGER slow AFTER INSERT ON holdfast.jobs FOR EACH STATEMENT EXECUTE FUNCTION slow()
    """)
    parameters = {"channel": CHANNEL, "consumer": CONSUMER, "limit": 10, "worker": "me"}
    rows = sql.execute(QUERIES["claim"], parameters).fetchall()
    assert [row[1] for row in rows] == [None], "ask again"
    [(made,)] = sql.execute("SELECT count(*) FROM holdfast.jobs").fetchall()
    assert made in (2_000, 4_000)


async def looks(database: str, query: str, **parameters: Any) -> int:
    """How many rows one step of a named query looks at, at the most, also within functions."""
    async with pooled(database) as connection, watched(connection) as plans:
        await connection.execute(QUERIES[query], parameters, prepare=False)
    return max(plan.looks for plan in plans)
