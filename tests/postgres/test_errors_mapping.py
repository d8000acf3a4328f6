"""Errors: what the server and the driver say, in the words of the one tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.session import translate
from holdfast.bus.client import Bus
from holdfast.embedded import Postgres
from holdfast.model.event import Event
from holdfast.model.redact import address
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, MINUTE, claim, claim_one, complete, ids, publish, state, subscribe, until

numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server of our own, to be stopped and started."""
    with Postgres() as own:
        yield own


@pytest.fixture
async def mortal(server: Postgres) -> AsyncIterator[PostgresBackend]:
    """A backend on that server."""
    server.start()
    url = await asyncio.to_thread(server.create_database, f"test_{next(numbers)}")
    backend = PostgresBackend(url)
    await backend.open()
    yield backend
    await backend.close()


async def answers(verb: Callable[[], Awaitable[Any]]) -> bool:
    try:
        await verb()
    except holdfast.Unavailable:
        return False
    return True


async def test_a_server_that_is_gone_is_unavailable_for_every_verb_and_heals(
    server: Postgres, mortal: PostgresBackend
) -> None:
    await subscribe(mortal)
    await publish(mortal, "a", "b")
    job = await claim_one(mortal)
    lock = await mortal.locks.acquire("sweeper", "me", MINUTE)
    assert lock is not None
    await asyncio.to_thread(server.kill)
    verbs: list[Callable[[], Awaitable[Any]]] = [
        mortal.now,
        mortal.channels.names,
        lambda: publish(mortal, "lost"),
        lambda: mortal.log.publish(CHANNEL, [Event(n, f"bulk-{n}") for n in range(500)]),
        lambda: claim(mortal),
        lambda: mortal.leases.complete([job]),
        lambda: mortal.lifecycle.due(10),
        lambda: mortal.log.read(CHANNEL, None, 10),
        lambda: subscribe(mortal, "late"),
        lambda: mortal.channels.consumer_stats(CHANNEL, CONSUMER),
        lambda: mortal.leases.requeue(CHANNEL, CONSUMER, job.id),
        lambda: mortal.log.extent(CHANNEL),
        lambda: mortal.log.cuts(CHANNEL, None, 10, 10),
        lambda: anext(mortal.log.pages(CHANNEL, None, job.position, 10)),
        lambda: mortal.cursors.attach(CHANNEL, "archiver"),
        lambda: mortal.cursors.move(CHANNEL, "archiver", None, job.position),
        lambda: mortal.locks.acquire("another", "me", MINUTE),
        lambda: mortal.locks.renew(lock, MINUTE),
        lambda: mortal.retention.trim(CHANNEL, lock.until, 10, lock),
        lambda: mortal.retention.size(CHANNEL),
        lambda: mortal.retention.purge_dead(CHANNEL, lock.until, 10, lock),
        lambda: mortal.records.put("gbe.state.a", {}, 0),
        lambda: mortal.records.due("gbe.", 10),
    ]
    outcomes = await asyncio.gather(*(verb() for verb in verbs), return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, holdfast.Unavailable), outcome
        assert f"127.0.0.1:{server.port}" in str(outcome)
    await asyncio.to_thread(server.start)
    await until(lambda: answers(mortal.now))
    assert await complete(mortal, job), "what was leased before is still ours"
    assert ids(await claim(mortal)) == ["b"]
    assert not (await publish(mortal, "lost"))[0].duplicate, "and nothing was half done"


async def test_a_bus_heals_by_itself(server: Postgres, mortal: PostgresBackend) -> None:
    async with Bus([mortal.fork()]) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, 1, id="before")
        await asyncio.to_thread(server.kill)
        with pytest.raises(holdfast.Unavailable):
            await bus.poll(CHANNEL, CONSUMER)
        assert bus.partitions.all[0].health.faulty
        with pytest.raises(holdfast.Unavailable):
            await bus.publish(CHANNEL, 1, id="refused")
        await asyncio.to_thread(server.start)
        [job] = await until(lambda: polled(bus))
        await bus.finalize(job, success=True)
        assert not bus.partitions.all[0].health.faulty


async def polled(bus: Bus) -> list[holdfast.Job]:
    try:
        return await bus.poll(CHANNEL, CONSUMER)
    except holdfast.Unavailable:
        return []


async def test_a_connection_that_was_cut_costs_one_call_at_the_most(
    backend: PostgresBackend, admin: psycopg.Connection
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        " AND pid <> pg_backend_pid()"
    )
    await until(lambda: answers(backend.now))
    assert ids(await claim(backend)) == ["a"]
    assert await state(backend, "a") is State.LEASED


@pytest.mark.parametrize(
    "url",
    ["postgresql://nobody:secret@127.0.0.1:1/none", "postgresql://u:secret@127.0.0.1:1/x?connect_timeout=1"],
)
async def test_a_server_that_never_was_is_unavailable_without_its_password(url: str) -> None:
    with pytest.raises(holdfast.Unavailable, match=r"127\.0\.0\.1:1/") as caught:
        async with holdfast.connect(url):
            pass
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_said_and_not_shown(database: str) -> None:
    host = database.split("@")[1]
    with pytest.raises(holdfast.Unavailable, match="password") as caught:
        async with holdfast.connect(f"postgresql://holdfast:wrong-one@{host}"):
            pass
    assert "wrong-one" not in str(caught.value)


async def test_a_database_that_does_not_exist_is_named(database: str) -> None:
    with pytest.raises(holdfast.Unavailable, match="no_such_database"):
        async with holdfast.connect(database.rsplit("/", 1)[0] + "/no_such_database"):
            pass


@pytest.mark.parametrize("url", ["mysql://x", "orders", "http://localhost"])
def test_an_unknown_scheme_is_refused_by_name(url: str) -> None:
    with pytest.raises(holdfast.InvalidInput):
        holdfast.connect(url)


async def test_a_backend_that_was_not_opened_says_so(database: str) -> None:
    with pytest.raises(holdfast.Unavailable, match="connect"):
        await PostgresBackend(database).now()


def test_what_is_not_ours_is_not_renamed() -> None:
    error = psycopg.errors.UndefinedTable("relation does not exist")
    assert translate(error, "postgresql://h/d") is error


def test_the_address_is_told_without_its_secrets() -> None:
    assert (
        address("postgresql://me:hush@db.example:6543/orders?sslmode=require", 5432)
        == "db.example:6543/orders"
    )
    assert "hush" not in address("postgresql://me:hush@[broken", 5432)


async def test_a_server_without_room_is_unavailable(database: str, admin: psycopg.Connection) -> None:
    address, name = database.split("@")[1], database.rsplit("/", 1)[1]
    admin.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")  # it does not bind superusers
    admin.execute(f"CREATE ROLE guest_{name} LOGIN PASSWORD 'p'")
    try:
        with pytest.raises(holdfast.Unavailable, match="too many connections"):
            async with holdfast.connect(f"postgresql://guest_{name}:p@{address}"):
                pass
    finally:
        admin.execute(f"DROP ROLE guest_{name}")


async def test_a_server_that_takes_no_writes_is_unavailable_until_it_does(
    backend: PostgresBackend, sql: psycopg.Connection[tuple[Any, ...]]
) -> None:
    name = sql.info.dbname
    backends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"
    sql.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    sql.execute(f"{backends} AND datname = current_database()")
    with pytest.raises(holdfast.Unavailable):
        await publish(backend, "cut off")
    with pytest.raises(holdfast.Unavailable, match="takes no writes"):
        await publish(backend, "a")
    sql.execute("SET default_transaction_read_only = off")
    sql.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert len(await publish(backend, "a")) == 1
