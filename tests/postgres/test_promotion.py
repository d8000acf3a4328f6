"""A pair under load: its primary is killed or freezes, and the standby takes over, while clients go on."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
from promotion import load, url_of
from standby import SETTINGS, Standby, ask

import holdfast
from holdfast.backends.postgres import pool
from holdfast.embedded import Postgres
from holdfast.model.event import LogEntry
from kit import CHANNEL, in_memory, until

log = logging.getLogger(__name__)
DATABASE = "shop"
ROOT = Path(__file__).parents[2]
PROMOTIONS = 12


@contextmanager
def servers() -> Iterator[tuple[Postgres, Standby]]:
    """A primary with a migrated database, and a standby of it."""
    with in_memory(), Postgres(settings=SETTINGS) as primary:
        with holdfast.connect_sync(primary.create_database(DATABASE)):
            pass
        with Standby(primary) as standby:
            yield primary, standby


@pytest.fixture
def pair_of_servers() -> Iterator[tuple[Postgres, Standby]]:
    with servers() as made:
        yield made


def url(*each: Postgres) -> str:
    return url_of(*(server.database_url(DATABASE) for server in each))


async def fail_over(primary: Postgres, standby: Standby) -> float:
    """Kill the one, promote the other. Returns when it took writes."""
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(standby.promote)
    return time.monotonic()


async def test_a_synchronous_standby_has_all_that_was_acknowledged(
    pair_of_servers: tuple[Postgres, Standby],
) -> None:
    primary, standby = pair_of_servers
    standby.make_synchronous()
    async with load(url(primary, standby)) as loaded:
        await loaded.more(100)
        await fail_over(primary, standby)
        await loaded.more(100)
        await loaded.drained()
    assert set(loaded.acknowledged) <= set(loaded.handled)
    assert set(loaded.completed.values()) == {1}


async def test_what_an_asynchronous_standby_has_not_is_reported_and_nothing_else_is_missing(
    pair_of_servers: tuple[Postgres, Standby], caplog: pytest.LogCaptureFixture
) -> None:
    primary, standby = pair_of_servers
    async with load(url(primary, standby)) as loaded:
        await loaded.more(100)
        standby.catch_up()
        before = dict(loaded.acknowledged)
        await asyncio.to_thread(standby.part)
        await loaded.more(50)
        await fail_over(primary, standby)
        await loaded.more(100)
        await loaded.drained()
        there = ask(standby.database_url(DATABASE), "SELECT array_agg(id) FROM holdfast.keys")
        lost = set(loaded.acknowledged) - set(there)
        assert len(lost) >= 50
        assert not lost & set(before)
        reported = ask(standby.database_url(DATABASE), "SELECT array_agg(id) FROM holdfast.lost")
        assert set(reported) == lost
        assert f"has lost {len(lost)} acknowledged events of channel {CHANNEL!r}" in caplog.text
        findings = await loaded.bus.partitions.all[0].backend.check()
        [finding] = [each for each in findings if each.subject == "lost events"]
        positions = sorted(loaded.acknowledged[each] for each in lost)
        assert f"{len(lost)} acknowledged events of channel {CHANNEL!r} are missing" in finding.message
        assert f"{positions[0]} to {positions[-1]}" in finding.message
        for each in lost:  # as the message says
            await loaded.publisher.publish(CHANNEL, {"n": int(each.partition("-")[2])}, id=each)
        assert "lost events" not in [
            each.subject for each in await loaded.bus.partitions.all[0].backend.check()
        ]
    assert set(loaded.acknowledged) - lost <= set(loaded.handled)
    new = {each for each, position in loaded.acknowledged.items() if position > "0002"}
    assert {loaded.completed[each] for each in new} == {1}


async def test_clients_leave_a_primary_that_is_frozen(
    pair_of_servers: tuple[Postgres, Standby], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still lets everybody in, and says nothing. It costs one connection its timeout, not each of them."""
    for module in ("session", "log"):
        monkeypatch.setattr(f"holdfast.backends.postgres.{module}.PATIENCE", 1.0)
    monkeypatch.setitem(pool.ALERT, "connect_timeout", 2)
    primary, standby = pair_of_servers
    standby.make_synchronous()
    async with load(url(primary, standby)) as loaded:
        await loaded.more(100)
        await asyncio.to_thread(primary.pause)
        await asyncio.to_thread(standby.promote)
        await loaded.more(100)
        began = time.monotonic()
        session = loaded.bus.partitions.all[0].backend._session  # type: ignore[attr-defined]
        await session._pool.clear()
        await loaded.more(1)
        assert time.monotonic() - began < 2
        await loaded.drained()
    await asyncio.to_thread(primary.kill)
    assert set(loaded.acknowledged) <= set(loaded.handled)
    assert set(loaded.completed.values()) == {1}


@pytest.mark.slow
async def test_clients_go_on_within_two_seconds_of_a_promotion(
    pair_of_servers: tuple[Postgres, Standby],
) -> None:
    """Back and forth between two synchronous standbys: the one that was killed comes back as the other's."""
    primary, standby = pair_of_servers
    await fail_over(primary, standby)
    waits, loaded = dict[str, list[float]](publish=[], complete=[]), None
    with in_memory(), Standby(standby) as other:
        async with load(url(standby, other)) as loaded:
            for number in range(PROMOTIONS):
                other.make_synchronous()
                await loaded.more(100)
                await asyncio.to_thread(standby.kill)
                if number % 2:
                    await until(loaded.despaired)
                promoted = await fail_over(standby, other)
                await loaded.more(100)
                await until(lambda since=promoted: loaded.went_on(since))  # type: ignore[misc]
                waits["publish"].append(next(at for at in loaded.published_at if at > promoted) - promoted)
                waits["complete"].append(next(at for at in loaded.completed_at if at > promoted) - promoted)
                await asyncio.to_thread(standby.follow, other)
                standby, other = other, standby
            await loaded.drained()
    assert set(loaded.acknowledged) <= set(loaded.handled)
    assert set(loaded.completed.values()) == {1}
    for what, seconds in waits.items():
        log.warning("to the next %s: p50 %.2f s, max %.2f s", what, median(seconds), max(seconds))
    assert max(*waits["publish"], *waits["complete"]) < 2


async def test_the_settings_of_the_documentation_make_a_pair() -> None:
    """Also its command, which makes the standby."""
    page = (ROOT / "docs/high-availability.md").read_text().partition("## PostgreSQL")[2]
    [settings] = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    [[name, *options]] = [line.split() for line in re.findall(r"^pg_basebackup .*$", page, re.MULTILINE)]
    written = dict(line.split(" = ") for line in settings.strip().splitlines())
    waits = {"synchronous_standby_names": written.pop("synchronous_standby_names").strip("'")}
    with in_memory(), Postgres(settings=SETTINGS | written) as primary:
        database = primary.create_database(DATABASE)
        with Standby(
            primary, [name, *(each for each in options if not each.startswith("--pgdata"))]
        ) as standby:
            for each, value in waits.items():
                ask(primary.url, f"ALTER SYSTEM SET {each} = '{value}'")
            ask(primary.url, "SELECT pg_reload_conf()")

            async def follows() -> bool:
                state = ask(primary.url, "SELECT sync_state FROM pg_stat_replication")
                return state in ("sync", "quorum")

            await until(follows)
            async with holdfast.connect(url_of(database, standby.database_url(DATABASE))) as bus:
                await bus.publish(CHANNEL, {}, id="a")
                findings = await bus.partitions.all[0].backend.check()
                assert {each.subject: each.level for each in findings}["synchronous_commit"] == "ok"
                await fail_over(primary, standby)
                assert [entry.event.id for entry in await reread(bus)] == ["a"]


async def reread(bus: holdfast.Bus) -> list[LogEntry]:
    async def attempt() -> list[LogEntry]:
        try:
            return await bus.read(CHANNEL)
        except holdfast.Unavailable:
            return []

    return await until(attempt)


@pytest.fixture
async def without_standby(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[holdfast.Bus, str]]:
    """A server that waits for a synchronous standby which is away, and a bus on a database of it."""
    with in_memory(), Postgres(settings=SETTINGS) as alone:
        database = alone.create_database(DATABASE)
        async with holdfast.connect(database) as bus:
            await bus.publish(CHANNEL, {}, id="before")
            ask(alone.url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            ask(alone.url, "SELECT pg_reload_conf()")

            async def waits() -> bool:
                try:
                    async with asyncio.timeout(0.3):
                        await bus.publish(CHANNEL, {})
                except TimeoutError:
                    return True
                return False

            await until(waits)
            for module in ("session", "log"):
                monkeypatch.setattr(f"holdfast.backends.postgres.{module}.PATIENCE", 1.0)
            yield bus, database


async def test_a_repeat_is_not_acknowledged_before_the_standby_has_the_first_one(
    without_standby: tuple[holdfast.Bus, str],
) -> None:
    """A call that is cancelled while it waits for the standby has committed, for all but the standby."""
    bus, database = without_standby
    publish = bus.partitions.all[0].backend.log.publish
    one, bulk = [holdfast.Event({}, "e")], [holdfast.Event({}, f"e-{n}") for n in range(250)]
    for events in (one, bulk):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await publish(CHANNEL, events)
    assert ask(database, "SELECT count(*) FROM holdfast.log WHERE id LIKE 'e%%'") == 251
    repeats = [publish(CHANNEL, events) for events in (one, bulk)]
    refused = await asyncio.gather(*repeats, return_exceptions=True)
    assert [type(each) for each in refused] == [holdfast.Unavailable] * 2


async def test_what_an_operator_cuts_short_is_not_acknowledged(
    without_standby: tuple[holdfast.Bus, str],
) -> None:
    """The server says then that it has committed, and warns that its standby may not have."""
    bus, database = without_standby
    publishing = asyncio.create_task(bus.partitions.all[0].backend.log.publish(CHANNEL, [holdfast.Event({})]))
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    async def cancelled() -> bool:
        return bool(ask(database, cancel))

    await until(cancelled)
    with pytest.raises(holdfast.Unavailable, match="standby"):
        await publishing
