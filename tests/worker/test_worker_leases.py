"""Leases at work: heartbeats that no handler can starve, and what happens when a lease is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Self

import pytest
from shift import ended, holds, shift

import holdfast
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.worker import Worker
from holdfast.contracts import Backend
from holdfast.model.job import JobRecord
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, claim, claim_one, complete, publish, record, subscribe, until

SHORT = timedelta(milliseconds=400)
LONG = 3 * SHORT.total_seconds()


class Scene:
    """An app whose handler takes three times its lease, and a thief who polls all that time.

    An async handler blocks the event loop of the test, so the thief is a thread with a bus of its own.
    """

    def __init__(self, url: str, *, plain: bool) -> None:
        self.app, self.taken = holdfast.App(), list[holdfast.Job]()
        self._url, self._begun, self._over = url, threading.Event(), threading.Event()
        self._thief = threading.Thread(target=self._steal)

        def block_thread(event: holdfast.Event) -> None:
            self._begun.set()
            time.sleep(LONG)

        async def block(event: holdfast.Event) -> None:
            block_thread(event)

        handler = self.app.handler(CHANNEL, CONSUMER, lease=SHORT, max_abandonments=1, start="earliest")
        handler(block_thread if plain else block)

    def _steal(self) -> None:
        with holdfast.connect_sync(self._url) as bus:
            self._begun.wait(20)
            while not self._over.wait(0.02):
                self.taken.extend(bus.poll(CHANNEL, CONSUMER, limit=10))

    def __enter__(self) -> Self:
        self._thief.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thief.join()


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_that_blocks_past_its_lease_keeps_it(
    bus: holdfast.Bus, backend: Backend, database: str, plain: bool
) -> None:
    await publish(backend, "a")
    with Scene(database, plain=plain) as scene:
        async with shift(scene.app, bus):
            found = await ended(backend, "a")
    assert (found.state, found.abandonments, found.token, scene.taken) == (State.DONE, 0, 1, [])


@pytest.mark.parametrize("plain", [False, True])
async def test_without_heartbeats_it_would_lose_it(
    bus: holdfast.Bus, backend: Backend, database: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positive control of the test above."""
    monkeypatch.setattr(Heartbeat, "watch", lambda *_: None)
    await publish(backend, "a")
    with Scene(database, plain=plain) as scene:
        async with shift(scene.app, bus):
            found = await ended(backend, "a")
    assert (found.state, found.reason) == (State.DEAD, "crash_loop")


@pytest.mark.parametrize("successor", ["somebody else", "the same worker"])
async def test_a_handler_whose_lease_is_lost_is_cancelled_and_its_result_is_not_settled(
    bus: holdfast.Bus, backend: Backend, successor: str
) -> None:
    app, begun, cancelled = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, lease="300ms", max_attempts=1, concurrency=1, start="earliest")
    async def first_hangs(event: holdfast.Event, job: holdfast.Job) -> None:
        if job.token > 1:
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await publish(backend, "a")
    async with shift(app, bus):
        await asyncio.wait_for(begun.wait(), 60)
        held = await record(backend, "a")
        if successor == "somebody else":
            await backend.channels.set_paused(CHANNEL, CONSUMER, paused=True)  # the worker gets no more
        assert await bus.requeue(CHANNEL, CONSUMER, held.id)  # CORRECTIONS 001.5: it raises the token
        await asyncio.wait_for(cancelled.wait(), 60)
        await backend.channels.set_paused(CHANNEL, CONSUMER, paused=False)
        found = await ended(backend, "a")
    assert (found.state, found.token, found.attempts, found.errors) == (State.DONE, 3, 1, [])


async def leased(backend: Backend, event_id: str) -> JobRecord:
    async def is_leased() -> JobRecord | None:
        found = await record(backend, event_id)
        return found if found.state is State.LEASED else None

    return await until(is_leased)


async def test_a_waiting_job_whose_lease_is_lost_is_not_begun(
    bus: holdfast.Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, go, begun, dropped = holdfast.App(), asyncio.Event(), [], []
    lost = Worker._lost

    def spy(self: Worker, job: holdfast.Job) -> None:
        dropped.append(job.event.id)
        lost(self, job)

    monkeypatch.setattr(Worker, "_lost", spy)

    @app.handler(CHANNEL, CONSUMER, lease="300ms", concurrency=1, prefetch=2, start="earliest")
    async def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        await go.wait()

    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    async with shift(app, bus):
        await holds(lambda: begun == ["a"])
        held = await leased(backend, "b")
        await leased(backend, "c")  # now the worker has all that it wants, and polls no more
        assert await bus.requeue(CHANNEL, CONSUMER, held.id)
        assert await complete(backend, await claim_one(backend))
        await holds(lambda: "b" in dropped)
        go.set()
        assert (await ended(backend, "c")).state is State.DONE
    assert begun == ["a", "c"]


async def test_forgetting_a_lost_lease_does_not_forget_the_newer_one_of_the_same_job(
    bus: holdfast.Bus, backend: Backend
) -> None:
    """A worker may hold both: its old handler still runs when it claims the job again."""
    await subscribe(backend, lease="300ms")
    await publish(backend, "a")
    [old] = await claim(backend)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, old.id)
    [new] = await claim(backend)
    async with Heartbeat(bus, timedelta(milliseconds=300), asyncio.get_running_loop()) as heart:
        heart.watch([old], SHORT, lambda _: None)
        heart.watch([new], SHORT, lambda _: None)
        heart.forget([old])

        async def extended() -> bool:
            now = (await record(backend, "a")).lease_until
            return now is not None and now > new.lease_until

        await until(extended)


async def test_heartbeats_end_with_their_job(bus: holdfast.Bus, backend: Backend) -> None:
    """A job that is done, dead or released is not extended: nothing is refused, and nothing is held."""
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, lease="300ms", max_attempts=1, start="earliest")
    async def work(event: holdfast.Event) -> None:
        if event.id == "bad":
            raise RuntimeError("no")

    hearts: list[Heartbeat] = []
    begin = Heartbeat.__aenter__

    async def spy(self: Heartbeat) -> Heartbeat:
        hearts.append(self)
        return await begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeat, "__aenter__", spy)
        await publish(backend, "good", "bad")
        async with shift(app, bus):
            await ended(backend, "good")
            await ended(backend, "bad")
            await holds(lambda: not hearts[0]._held)
