"""kill -9 of the server under load, with every write synced: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio

import pytest
from nats_load import Load, judge

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import connection
from holdfast.embedded import Nats
from kit import CHANNEL, publish, subscribe, until

KILLS = 3


async def test_nothing_acked_is_lost_and_everything_drains() -> None:
    server = Nats(sync_interval="always").start()
    backend = NatsBackend(server.url)
    try:
        await backend.open()
        await subscribe(backend, max_abandonments=100)
        load = Load(backend)
        for _ in range(KILLS):
            acked, completed = len(load.acked), len(load.completed)
            await until(lambda a=acked, c=completed: load.got_on(a + 100, c + 20))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await load.end()
        positions = await judge(backend, load)
        assert len({each.split("-")[0] for each in positions}) > 1, "a server that came back is another one"
    finally:
        await backend.close()
        server.stop()


async def test_a_server_that_is_away_is_unavailable_and_comes_back() -> None:
    server = Nats(sync_interval="always").start()
    backend = NatsBackend(server.url)
    try:
        await backend.open()
        await publish(backend, "a")
        await asyncio.to_thread(server.kill)
        for call in (
            backend.now(),
            publish(backend, "b"),
            backend.lifecycle.due(10),
            backend.log.read(CHANNEL, None, 1),
        ):
            with pytest.raises(holdfast.Unavailable, match=str(server.port)):
                await call
        await asyncio.to_thread(server.start)
        assert [receipt.duplicate for receipt in await publish(backend, "a", "b")] == [True, False]
    finally:
        await backend.close()
        server.stop()


async def test_a_wrong_url_is_said_at_once() -> None:
    with pytest.raises(holdfast.InvalidInput, match="host"):
        await NatsBackend("nats://").open()
    with pytest.raises(holdfast.Unavailable):
        await NatsBackend("nats://127.0.0.1:1").open()


async def answers(backend: NatsBackend) -> bool:
    try:
        await backend.now()
    except holdfast.Unavailable:
        return False
    return True


async def test_a_silent_server_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.5)
    server = Nats().start()
    backend = NatsBackend(server.url)
    try:
        await backend.open()
        server.pause()
        async with asyncio.timeout(60):
            while await answers(backend):  # the signal takes a moment to stop it
                continue
            assert not await answers(backend)
        server.resume()
        monkeypatch.undo()
        await publish(backend, "a")
    finally:
        await backend.close()
        server.stop()
