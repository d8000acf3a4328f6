"""Draining: a signal lets what runs finish and gives back the rest; a second one aborts."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from shift import PATIENCE, holds

import holdfast
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, by_id, claim, publish, record, states, subscribe, until

JOBS = [f"e-{n}" for n in range(4)]


class Workshop:
    """An app with one bench: jobs that begin stay until they are told to go."""

    def __init__(self, *, plain: bool = False) -> None:
        self.app, self.begun, self.go = holdfast.App(), list[str](), threading.Event()

        async def work(event: holdfast.Event) -> None:
            self.begun.append(event.id)
            await asyncio.to_thread(self.go.wait, PATIENCE)

        def work_plain(event: holdfast.Event) -> None:
            self.begun.append(event.id)
            self.go.wait(PATIENCE)

        handler = self.app.handler(
            CHANNEL, CONSUMER, max_attempts=1, concurrency=1, prefetch=len(JOBS), start="earliest"
        )
        handler(work_plain if plain else work)

    @asynccontextmanager
    async def serving(self, bus: holdfast.Bus, backend: Backend) -> AsyncIterator[asyncio.Task[None]]:
        """Serve until a signal comes. All jobs are leased, and one of them has begun."""
        await subscribe(backend)
        await publish(backend, *JOBS)
        task = asyncio.create_task(self.app.serve(bus, idle="100ms"))
        try:

            async def all_leased() -> bool:
                return await states(backend) == {State.LEASED: len(JOBS)}

            await until(all_leased)
            await holds(lambda: self.begun == JOBS[:1])
            yield task
        finally:
            self.go.set()
            task.cancel()
            await asyncio.wait([task], timeout=PATIENCE)


@pytest.fixture(autouse=True)
def _a_signal_too_early_is_harmless() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


async def released(backend: Backend, names: list[str]) -> None:
    """Wait until those jobs are ready again, with nothing spent."""

    async def all_ready() -> bool:
        return {(await record(backend, name)).state for name in names} == {State.READY}

    await until(all_ready)
    for name in names:
        kept = await record(backend, name)
        assert (kept.attempts, kept.abandonments, kept.errors, kept.worker) == (0, 0, [], None), name


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_gives_back_what_has_not_begun_and_lets_the_rest_finish(
    bus: holdfast.Bus, backend: Backend, number: signal.Signals, plain: bool
) -> None:
    shop = Workshop(plain=plain)
    async with shop.serving(bus, backend) as task:
        os.kill(os.getpid(), number)
        await released(backend, JOBS[1:])
        assert (await record(backend, JOBS[0])).state is State.LEASED
        assert not task.done()
        shop.go.set()
        await asyncio.wait_for(task, PATIENCE)
    assert (await record(backend, JOBS[0])).state is State.DONE
    assert shop.begun == JOBS[:1]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_second_signal_aborts_and_releases_what_ran(
    bus: holdfast.Bus, backend: Backend, plain: bool
) -> None:
    # CORRECTIONS 001.7: a shutdown must release, not fail.
    shop = Workshop(plain=plain)
    async with shop.serving(bus, backend) as task:
        os.kill(os.getpid(), signal.SIGTERM)
        await released(backend, JOBS[1:])
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE)
    await released(backend, JOBS)


async def test_what_was_given_back_keeps_its_place(bus: holdfast.Bus, backend: Backend) -> None:
    shop = Workshop()
    async with shop.serving(bus, backend) as task:
        os.kill(os.getpid(), signal.SIGTERM)
        await released(backend, JOBS[1:])
        await publish(backend, "newer")
        again = await claim(backend, len(JOBS) - 1)
        assert [job.event.id for job in again] == JOBS[1:]
        assert {job.attempt for job in by_id(again).values()} == {1}
        shop.go.set()
        await asyncio.wait_for(task, PATIENCE)


async def test_what_does_not_finish_within_the_grace_is_released(bus: holdfast.Bus, backend: Backend) -> None:
    shop, stop = Workshop(), asyncio.Event()
    await publish(backend, *JOBS)
    running = asyncio.create_task(shop.app.run(bus, stop=stop, idle="100ms", grace="200ms"))
    await holds(lambda: shop.begun == JOBS[:1])
    stop.set()
    await asyncio.wait_for(running, PATIENCE)
    shop.go.set()
    await released(backend, JOBS)


async def test_a_handler_may_not_turn_a_shutdown_into_a_failure(bus: holdfast.Bus, backend: Backend) -> None:
    """Cleaning up and letting the cancellation through is no error of the job."""
    app, begun, cleaned = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, max_attempts=1, start="earliest")
    async def work(event: holdfast.Event) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    await publish(backend, "a")
    running = asyncio.create_task(app.run(bus, idle="100ms"))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()
    await released(backend, ["a"])
