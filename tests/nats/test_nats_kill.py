"""kill -9 of the server under load, with every write synced: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import connection
from holdfast.embedded import Nats
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import CHANNEL, claim, publish, read_all, states, step, subscribe, until

KILLS = 3


class Load:
    """Publishers and a worker that repeat whatever the store did not answer."""

    def __init__(self, backend: NatsBackend) -> None:
        self.backend, self.stop = backend, False
        self.acked: dict[str, str] = {}
        self.completed: Counter[str] = Counter()

    async def publish(self, name: str, size: int) -> None:
        turn = 0
        while not self.stop:
            turn += 1
            events = [Event({"n": n}, f"{name}-{turn}-{n}") for n in range(size)]
            receipts = await self.insist(events)
            self.acked |= {receipt.id: receipt.position for receipt in receipts}

    async def got_on(self, acked: int, completed: int) -> bool:
        """Whether everybody has done that much, so that a kill interrupts all of them."""
        return len(self.acked) >= acked and len(self.completed) >= completed

    async def insist(self, events: list[Event]) -> list[holdfast.Receipt]:
        while True:
            try:
                return await self.backend.log.publish(CHANNEL, events)
            except holdfast.Unavailable:
                await asyncio.sleep(0.02)

    async def work(self) -> None:
        while not self.stop:
            try:
                jobs = await claim(self.backend, 20)
                answers = await self.backend.leases.complete(jobs)
                self.completed.update(job.event.id for job, yes in zip(jobs, answers, strict=True) if yes)
            except holdfast.Unavailable:
                await asyncio.sleep(0.02)


async def test_nothing_acked_is_lost_and_everything_drains() -> None:
    server = Nats(sync_interval="always").start()
    backend = NatsBackend(server.url)
    try:
        await backend.open()
        await subscribe(backend, max_abandonments=100)
        load = Load(backend)
        tasks = [asyncio.create_task(load.publish(f"p{size}", size)) for size in (1, 40)]
        tasks.append(asyncio.create_task(load.work()))
        for _ in range(KILLS):
            acked, completed = len(load.acked), len(load.completed)
            await until(lambda a=acked, c=completed: load.got_on(a + 100, c + 20))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        load.stop = True
        await asyncio.gather(*tasks)
        await judge(backend, load)
    finally:
        await backend.close()
        server.stop()


async def judge(backend: NatsBackend, load: Load) -> None:
    log = {entry.event.id: entry.position for entry in await read_all(backend)}
    assert len(log) == len(await read_all(backend)), "one event per id"
    assert load.acked.items() <= log.items(), "each where its receipt said"
    assert max(load.completed.values()) == 1
    epochs = {position.split("-")[0] for position in log.values()}
    assert len(epochs) > 1, "a server that came back is another one"
    await backend.advance(timedelta(hours=1))
    while (await step(backend)).total:
        pass
    while jobs := await claim(backend, 500):
        assert all(await backend.leases.complete(jobs))
    assert await states(backend) == {State.DONE: len(log)}, "counters equal counts"


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
