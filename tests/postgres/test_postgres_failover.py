"""Failover: a standby without the last writes takes over. No token is given twice, and no reader skips."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from standby import Pair, ask, paired

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.embedded import Postgres
from holdfast.model.errors import LockLost, Outdated
from holdfast.model.job import Job
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Hold, Lock
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.stores import open_store
from holdfast_chaos.without_spark import archive
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    publish,
    read_all,
    record,
    subscribe,
    until,
)

T = TypeVar("T")
SWEEPER = "gbe:lock:sweeper"
ARCHIVED = "archived"
RECORD = "gbe.state.tasks.t-1"
LOST = 40
"""More than thirty: so many numbers of a sequence the server logs ahead."""
KINDS = ("single", "bulk", "ordered", "requeued", "requeued-bulk", "revived")
"""Channels with one job each, by how it comes to its next token."""


async def reconnected(call: Callable[[], Awaitable[T]]) -> T:
    """What the call returns once it no longer meets connections that the failover broke."""

    async def attempt() -> list[T]:
        try:
            return [await call()]
        except holdfast.Unavailable:
            return []

    [returned] = await until(attempt)
    return returned


async def locked(backend: PostgresBackend, name: str, owner: str) -> Lock:
    lock = await backend.locks.acquire(name, owner, MINUTE)
    assert lock is not None
    return lock


async def events(backend: PostgresBackend, channel: str, after: str | None = None) -> list[str]:
    return [entry.event.id for entry in await backend.log.read(channel, after, 1000)]


class Lost(NamedTuple):
    """What the old primary gave out and the standby never heard of; and who had asked for it, reconnected."""

    url: str
    backend: PostgresBackend
    jobs: dict[str, Job]
    lock: Lock
    revision: int
    kept: int
    record: int
    position: str
    cold: ArchivePolicy
    ids: set[str]


@pytest.fixture(scope="module")
async def lost(
    postgres: Postgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Lost]:
    """One failover for many tests, each with a channel of its own. Nobody opens the store again after it."""
    database = postgres.create_database("failover", template)
    async with paired(postgres, database) as pair:
        backend = PostgresBackend(pair.url)
        await backend.open()
        for channel in KINDS:
            await subscribe(backend, channel=channel, ordered=channel == "ordered")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("holdfast.backends.postgres.log._BULK", 1 if "bulk" in channel else 200)
                await publish(backend, "a", "b", channel=channel, key="k")
        await subscribe(backend)
        await publish(backend, "both")
        await publish(backend, "both", channel=ARCHIVED)
        cold = ArchivePolicy(ARCHIVED, str(tmp_path_factory.mktemp("cold")))
        assert await archive([backend], open_store(cold.destination), cold, 10) == 1
        kept = await backend.records.put(RECORD, {"by": "both"}, 0)
        assert kept is not None
        pair.part()

        jobs = {}
        for channel in KINDS:
            for _ in range(3):
                jobs[channel] = await claim_one(backend, channel=channel)
                assert await backend.leases.requeue(channel, CONSUMER, jobs[channel].id)
            [jobs[channel]] = [j for j in await claim(backend, 2, channel=channel) if j.event.id == "a"] or [
                await claim_one(backend, channel=channel)
            ]
        for n in range(LOST):
            await publish(backend, f"lost-{n}")
        await publish(backend, "lost", channel=ARCHIVED)
        assert await archive([backend], open_store(cold.destination), cold, 10) == 1
        for owner in ("one", "two", "three"):
            assert await backend.locks.release(await locked(backend, SWEEPER, owner))
        lock = await locked(backend, SWEEPER, "old")
        revision = (await subscribe(backend, max_attempts=3)).revision
        written = await backend.records.put(RECORD, {"by": "the old"}, kept)
        assert written is not None
        position = (await read_all(backend))[-1].position
        ids = {job.id for job in await claim(backend, LOST + 1)}

        await pair.fail_over()
        assert await reconnected(backend.now)
        yield Lost(pair.url, backend, jobs, lock, revision, kept, written, position, cold, ids)
        await backend.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_completion_from_before_is_refused_and_the_new_holders_is_accepted(
    lost: Lost, kind: str
) -> None:
    backend, stale = lost.backend, lost.jobs[kind]
    if "requeued" in kind:
        assert await backend.leases.requeue(kind, CONSUMER, stale.id)
    if kind == "revived":
        for job in await claim(backend, 2, channel=kind):
            assert await bury(backend, job)
            assert await backend.deadletters.revive(kind, CONSUMER, [job.id]) == [True]
    jobs = {job.event.id: job for job in await claim(backend, 2, channel=kind)}
    fresh = jobs[stale.event.id]
    assert fresh.token > stale.token
    assert not await complete(backend, stale), "its lease was lost with the claim"
    with pytest.raises(holdfast.LeaseLost):
        await backend.leases.transaction(stale, lambda: None).__aenter__()
    assert await complete(backend, fresh)


async def test_the_tokens_of_locks_rise(lost: Lost) -> None:
    backend = lost.backend
    new = await locked(backend, SWEEPER, "new")
    assert new.token > lost.lock.token
    with pytest.raises(LockLost):
        await backend.locks.renew(lost.lock, MINUTE)
    with pytest.raises(LockLost):
        await backend.retention.trim(CHANNEL, await backend.now(), 10, lost.lock)
    assert (await backend.retention.trim(CHANNEL, await backend.now() - MINUTE, 10, new)).removed == 0
    assert await backend.locks.release(new)
    assert (await locked(backend, SWEEPER, "next")).token == new.token + 1


async def test_no_revision_is_given_twice(lost: Lost) -> None:
    backend = lost.backend
    other = await backend.records.put(RECORD, {"by": "the new"}, lost.kept)
    assert other is not None
    assert other > lost.record
    assert await backend.records.put(RECORD, {"by": "the old"}, lost.record) is None, "it never saw the new"
    assert (await subscribe(backend, max_attempts=4)).revision > lost.revision
    with pytest.raises(Outdated):
        await backend.channels.subscribe(CHANNEL, CONSUMER, Policy.of(max_attempts=5), revision=lost.revision)


async def test_a_reader_passes_over_nothing_that_is_acknowledged_afterwards(
    lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    backend = lost.backend
    await publish(backend, "one")
    await publish(backend, *(f"bulk-{n}" for n in range(200)))
    async with await psycopg.AsyncConnection.connect(lost.url) as mine:
        await publish(backend, "late")
        await mine.execute("SELECT holdfast.publish(%s, '{}', id => 'sql')", (CHANNEL,))
    new = {"one", "late", "sql", *(f"bulk-{n}" for n in range(200))}
    assert set(await events(backend, CHANNEL, lost.position)) == new
    assert lost.position in caplog.text, "what it has read is no longer there, and it is told so"
    caplog.clear()
    extent = await backend.log.extent(CHANNEL)
    assert extent.last is not None
    pages = [page async for page in backend.log.pages(CHANNEL, lost.position, extent.last, 50)]
    assert {event for page in pages for event in page.ids} == new
    assert lost.position in caplog.text
    assert (await backend.log.behind(CHANNEL, lost.position, 1000)).events == len(new)
    caplog.clear()
    [both] = await backend.log.read(CHANNEL, None, 1)
    assert set(await events(backend, CHANNEL, both.position)) == new
    assert not caplog.records, "this reader has seen nothing that is gone"
    assert not lost.ids & {job.id for job in await claim(backend, 300) if job.event.id != "both"}


async def test_an_archiver_ahead_of_the_new_log_goes_on_and_holds_the_sweeper_back(lost: Lost) -> None:
    """The archive has what is lost; the cursor came back from before that, and nothing follows it yet."""
    backend, cold = lost.backend, open_store(lost.cold.destination)
    lock = await locked(backend, "gbe:lock:archived", "sweeper")
    [came_back] = await backend.cursors.all(ARCHIVED)
    assert came_back.position == (await read_all(backend, ARCHIVED))[-1].position
    assert await archive([backend], cold, lost.cold, 10) == 0
    [ahead] = await backend.cursors.all(ARCHIVED)
    assert ahead.position is not None
    assert ahead.position > came_back.position
    await publish(backend, "new-1", "new-2", channel=ARCHIVED)
    later = await backend.now() + MINUTE
    trim = await backend.retention.trim(ARCHIVED, later, 10, lock)
    assert (trim.removed, trim.hold) == (1, Hold(ahead.name, ahead.position))
    assert await events(backend, ARCHIVED, ahead.position) == ["new-1", "new-2"]
    assert await archive([backend], cold, lost.cold, 10) == 1
    assert (await backend.retention.trim(ARCHIVED, later, 10, lock)).removed == 2


async def test_a_server_knows_at_once_that_it_was_promoted_and_reports_it(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Also on a connection that is older than that, and to whom knows nothing of the store."""
    backend = PostgresBackend(pair.url)
    await backend.open()
    [both] = await publish(backend, "both")
    pair.part()
    [gone] = await publish(backend, "gone")
    with psycopg.connect(pair.second, autocommit=True) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        # Ours never keep such a connection: what was read on it before would not be true after.
        with pytest.raises(holdfast.Unavailable, match="takes no writes"):
            await PostgresBackend(pair.second).open()
        await pair.turn()

        async def refused() -> bool:
            with pytest.raises(holdfast.Unavailable) as raised:
                await backend.log.read(CHANNEL, None, 10)
            return "takes no writes" in str(raised.value)

        await until(refused)
        pair.standby.promote()
        assert connection.execute("SELECT holdfast.timeline()").fetchone() == (2,)
        [sql] = connection.execute(
            "SELECT event_position FROM holdfast.publish(%s, '{}', id => 'sql')", (CHANNEL,)
        ).fetchone() or [""]
    assert both.position < gone.position < sql
    caplog.clear()
    assert await events(backend, CHANNEL, gone.position) == ["sql"]
    assert "timeline 2, epoch 2" in caplog.text
    [later] = await publish(backend, "later")
    assert later.position > sql
    [finding] = [each for each in await backend.check() if each.subject == "failover"]
    assert (finding.level, "epoch 2" in finding.message) == ("warning", True)
    await backend.advance(timedelta(days=8))
    assert not [each for each in await backend.check() if each.subject == "failover"]
    await backend.close()


async def test_a_worker_that_held_a_job_through_the_failover_is_refused(pair: Pair) -> None:
    app, took, may_end = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER)
    async def handle(job: Job) -> None:
        took.set()
        await may_end.wait()

    async with holdfast.connect(pair.url) as bus, asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, {}, id="a")
        pair.part()
        running = group.create_task(app.run(bus, stop=stop, idle="50ms"))
        await took.wait()
        pair.standby.promote()
        other = PostgresBackend(pair.second)
        await other.open()
        mine = await claim_one(other)
        await pair.turn()
        took.clear()
        may_end.set()
        await publish(other, "b")
        await took.wait()
        stop.set()
        await running  # it has given its answers by then
        assert (await record(other, "a")).token == mine.token
        assert await complete(other, mine)
        await other.close()


async def test_many_at_once_begin_one_epoch_and_a_url_of_both_hosts_leads_there(pair: Pair) -> None:
    second = urlsplit(pair.second)
    account, _, host = second.netloc.rpartition("@")
    hosts = f"{account}@{host},127.0.0.1:{urlsplit(pair.first).port}"
    both = PostgresBackend(urlunsplit(second._replace(netloc=hosts, query="target_session_attrs=read-write")))
    await both.open()
    await subscribe(both)
    await publish(both, "a")
    pair.part()
    stale = await claim_one(both)
    pair.standby.promote()
    others = [PostgresBackend(pair.second) for _ in range(8)]
    await asyncio.gather(*(other.open() for other in others))
    receipts = await asyncio.gather(*(publish(other, f"e-{n}") for n, other in enumerate(others)))
    assert {receipt.position[:4] for [receipt] in receipts} == {"0002"}
    assert ask(pair.second, "SELECT array_agg((epoch, timeline)::text) FROM holdfast.epochs") == ["(2,2)"]
    for other in others:
        await other.close()

    ask(pair.first, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'holdfast'")  # fmt: skip
    fresh = await reconnected(lambda: claim_one(both))
    assert (fresh.event.id, fresh.token > stale.token) == ("a", True)
    assert not await complete(both, stale)
    await both.close()


def test_nothing_raises_a_token_or_takes_an_epoch_by_itself(sql: psycopg.Connection[tuple[str, str]]) -> None:
    """All go by `lowest_token()` and `current_epoch()`, also the functions of a later migration."""
    sources = dict(
        sql.execute(
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace"
            " AND proname NOT IN ('current_epoch', 'renew_epoch')"
        ).fetchall()
    )
    assert {"claim", "requeue", "revive", "begin_publish", "publish_one", "horizons"} <= set(sources)
    for name, source in (sources | QUERIES).items():
        text = str(source)
        assert not re.search(r"(?<!greatest\([a-z]\.)\btoken \+ 1", text), name
        assert not ("holdfast.store s" in text and re.search(r"\bs\.epoch\b", text)), name
