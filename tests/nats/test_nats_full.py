"""A store that is full: publishes are refused in time, and what is there can still be worked off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import nats
import pytest

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import connection
from holdfast.embedded import Nats, files
from holdfast.model.event import Event
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    fail,
    publish,
    read_all,
    subscribe,
)

LIMIT = 6_000_000


class Small(Nats):
    """A server with little room, in its configuration or for our account."""

    def __init__(self, folder: Path, old: str, new: str) -> None:
        super().__init__(folder, sync_interval="2m")
        self._old, self._new = old, new

    def prepare(self) -> None:
        super().prepare()
        config = self.folder / "nats.conf"
        files.write_private(config, config.read_text().replace(self._old, self._new))


SERVERS = {
    "stream": ("", ""),
    "account": ("jetstream: enabled", f"jetstream: {{ max_mem: 1MB, max_file: {LIMIT} }}"),
    "server": ("jetstream { ", f"jetstream {{ max_file_store: {LIMIT}, "),
}


@pytest.fixture(params=SERVERS)
async def small(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NatsBackend]:
    """A backend on a store whose limit is that of its stream, its account or its server."""
    monkeypatch.setattr(connection, "_UNSURE", 60)
    with Small(tmp_path, *SERVERS[request.param]) as server:
        backend = NatsBackend(server.url)
        await backend.open()
        if request.param == "stream":
            async with await nats.connect(server.url) as client:
                info = json.loads((await client.request("$JS.API.STREAM.INFO.HOLDFAST")).data)
                config = json.dumps(info["config"] | {"max_bytes": LIMIT}).encode()
                await client.request("$JS.API.STREAM.UPDATE.HOLDFAST", config)
        yield backend
        await backend.close()


async def test_who_may_not_ask_for_limits_can_publish_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not answer at all, which must not look like one that is gone."""
    monkeypatch.setattr(connection, "_UNSURE", 0.1)
    monkeypatch.setattr(connection, "PATIENCE", 60)
    may = 'permissions: { publish: { deny: ["$SYS.>", "$JS.API.INFO"] } }, user: holdfast'
    with Small(tmp_path, "user: holdfast", may) as server:
        backend = NatsBackend(server.url)
        await backend.open()
        await publish(backend, "a")
        await publish(backend, "b")
        assert (await backend.check())[0].level == "warning"
        assert backend._store.connection.generation == 1, "it is the same connection"
        await backend.close()


async def fill(backend: NatsBackend, size: int, each: int) -> int:
    """Publish until it is refused; answers how many events were taken."""
    for turn in count():
        try:
            await backend.log.publish(
                CHANNEL, [Event(b"x" * size, f"{size}-{turn}-{n}") for n in range(each)]
            )
        except holdfast.Overloaded:
            return turn * each
    raise AssertionError


async def test_a_full_store_lets_jobs_end_and_the_log_be_trimmed(small: NatsBackend) -> None:
    await subscribe(small)
    await publish(small, *"abcdef")
    first, *rest = await claim(small)
    taken = await fill(small, 50_000, 5) + await fill(small, 1_000, 5) + await fill(small, 1, 1)
    assert len(await read_all(small)) == 6 + taken, "a publish is taken whole or not at all"
    assert await complete(small, first)
    assert await fail(small, rest[0])
    assert await bury(small, rest[1])
    assert await small.leases.complete(rest[2:]) == [True] * 3
    assert (await claim_one(small)).event.data
    lock = await small.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    assert lock is not None
    assert (await small.retention.trim(CHANNEL, await small.now(), 100, lock)).removed == 1
    [again] = await publish(small, "a")
    assert again.duplicate, "a repeat adds nothing"


@pytest.mark.parametrize("small", ["account"], indirect=True)
async def test_a_backlog_does_not_take_the_room_that_its_jobs_need_to_end(small: NatsBackend) -> None:
    await subscribe(small)
    assert await fill(small, 10, 450) > 2_000
    done = 0
    while done < 200:
        jobs = await claim(small, 50)
        assert await small.leases.complete(jobs) == [True] * 50
        done += len(jobs)
    assert (await small.channels.consumer_stats(CHANNEL, CONSUMER)).states["done"] == 200
