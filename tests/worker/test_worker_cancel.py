"""Jobs that are cancelled while their handlers run: how handlers end, and what else goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from shift import PATIENCE, ended, holds, settled, shift

import holdfast
from holdfast.bus import worker
from holdfast.bus.worker import Worker
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, record, states, subscribe, until

SHORT: dict[str, Any] = {"lease": "3s", "start": "earliest", "max_attempts": 1, "max_abandonments": 1}


async def cancel(bus: holdfast.Bus, name: str) -> None:
    assert await bus.cancel(CHANNEL, name, running=True, by="ann", reason="no more") == 1


def outcome(bus: holdfast.Bus, name: str) -> int:
    return bus.counters.outcomes[CHANNEL, CONSUMER, name]


@pytest.mark.parametrize("end", ["returns", "raises", "takes long"])
async def test_a_handler_that_does_not_stop_keeps_its_place_and_nothing_else(
    bus: holdfast.Bus,
    backend: Backend,
    end: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However it ends, the job is neither done nor failed, and the others are worked on meanwhile."""
    monkeypatch.setattr(worker, "_SLOW_END", 0.01)
    app, begun, go, told = holdfast.App(), list[str](), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, concurrency=2, **SHORT)
    async def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        if event.id != "a":
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            await go.wait()
            if end == "raises":
                raise RuntimeError("too late") from None
            if end == "takes long":
                raise

    caplog.set_level(logging.INFO)
    await publish(backend, "a")
    async with shift(app, bus):
        await holds(lambda: begun == ["a"])
        await cancel(bus, "a")
        await asyncio.wait_for(told.wait(), PATIENCE)
        await publish(backend, "b", "c")
        for name in "bc":
            assert (await ended(backend, name)).state is State.DONE
        await holds(lambda: "goes on although it was cancelled" in caplog.text)
        go.set()
        await publish(backend, "d")
        assert (await ended(backend, "d")).state is State.DONE
    kept = await record(backend, "a")
    assert (kept.state, kept.cancelled_by, kept.attempts, kept.errors) == (State.CANCELLED, "ann", 1, [])
    assert await states(backend) == {State.CANCELLED: 1, State.DONE: 3}
    assert [outcome(bus, each) for each in ("cancelled", "done", "failed", "lost")] == [1, 3, 0, 0]
    assert f"job {kept.id} was cancelled by ann: no more" in caplog.text
    assert "too late" not in caplog.text or end == "raises"


async def test_a_thread_that_never_looks_keeps_its_thread(bus: holdfast.Bus, backend: Backend) -> None:
    app, begun, go = holdfast.App(), list[str](), threading.Event()

    @app.handler(CHANNEL, CONSUMER, concurrency=1, prefetch=1, **SHORT)
    def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        if event.id == "a":
            go.wait(PATIENCE)

    await publish(backend, "a", "b")
    try:
        async with shift(app, bus):
            await holds(lambda: begun == ["a"])
            await cancel(bus, "a")
            await holds(lambda: outcome(bus, "cancelled") == 1)
            assert begun == ["a"]
            go.set()
            assert (await ended(backend, "b")).state is State.DONE
    finally:
        go.set()
    assert (await record(backend, "a")).state is State.CANCELLED


async def test_a_job_that_waits_in_the_worker_is_not_begun(bus: holdfast.Bus, backend: Backend) -> None:
    app, begun, go = holdfast.App(), list[str](), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, concurrency=1, prefetch=3, **SHORT)
    async def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        await go.wait()

    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    async with shift(app, bus):

        async def all_leased() -> bool:
            return begun == ["a"] and await states(backend) == {State.LEASED: 3}

        await until(all_leased)
        await cancel(bus, "b")
        await asyncio.sleep(0)
        found = await states(backend)
        assert found == {State.LEASED: 2, State.CANCELLED: 1}

        async def dropped() -> bool:  # by the notice, or by the next heartbeat
            return len(workers[0]._waiting) == 1

        workers = [each for each in _workers if each.handler.function is work]
        await until(dropped)
        go.set()
        assert (await ended(backend, "c")).state is State.DONE
    assert begun == ["a", "c"]


_workers: list[Worker] = []


@pytest.fixture(autouse=True)
def _known_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Worker.start

    def noting(self: Worker) -> asyncio.Future[None]:
        _workers.append(self)
        return start(self)

    _workers.clear()
    monkeypatch.setattr(Worker, "start", noting)


@pytest.mark.parametrize("timeout", [None, "5m"])
async def test_a_shutdown_at_the_same_moment(
    bus: holdfast.Bus, backend: Backend, timeout: str | None
) -> None:
    """What was cancelled is over; what only met the shutdown is released, and spends nothing."""
    app, begun = holdfast.App(), list[str]()

    @app.handler(CHANNEL, CONSUMER, timeout=timeout, **SHORT)
    async def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        await asyncio.Event().wait()

    await publish(backend, "a", "b")
    async with shift(app, bus, grace="0s"):
        await holds(lambda: sorted(begun) == ["a", "b"])
        await cancel(bus, "a")
    assert await states(backend) == {State.CANCELLED: 1, State.READY: 1}
    kept = await record(backend, "b")
    assert (kept.attempts, kept.abandonments, kept.errors) == (0, 0, [])


async def test_a_handler_that_says_so_itself_cancels_nothing(bus: holdfast.Bus, backend: Backend) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, **SHORT)
    async def work(event: holdfast.Event, job: holdfast.Job) -> None:
        job.cancelled = True

    await publish(backend, "a")
    async with shift(app, bus):
        assert (await ended(backend, "a")).state is State.DONE
    assert [outcome(bus, each) for each in ("cancelled", "done")] == [0, 1]


async def test_a_timeout_stays_a_failure(bus: holdfast.Bus, backend: Backend) -> None:
    """The counterpart: nobody cancelled that job, and its handler is cancelled all the same."""
    app, seen = holdfast.App(), list[bool]()

    @app.handler(CHANNEL, CONSUMER, timeout="50ms", **SHORT)
    async def work(event: holdfast.Event, job: holdfast.Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(job.cancelled)

    await publish(backend, "a")
    async with shift(app, bus):
        found = await ended(backend, "a")
    assert (found.state, found.reason, seen) == (State.DEAD, "max_attempts", [False])
    assert [outcome(bus, each) for each in ("cancelled", "buried")] == [0, 1]


async def test_a_notice_about_a_job_that_nobody_cancelled_changes_nothing(
    bus: holdfast.Bus, backend: Backend
) -> None:
    """Whoever can reach the store can send one."""
    app, begun, go = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        begun.set()
        await go.wait()

    await publish(backend, "a")
    async with shift(app, bus):
        await asyncio.wait_for(begun.wait(), PATIENCE)
        [at_work] = _workers
        for job_id in ((await record(backend, "a")).id, "999", "", "x/y"):
            at_work.look_at(0, job_id)
        await holds(lambda: not at_work._looks)
        go.set()
        await settled(backend, 1)
    assert (await record(backend, "a")).state is State.DONE
    assert outcome(bus, "cancelled") == 0


async def test_of_two_workers_the_one_that_has_it_is_told(database: str, backend: Backend) -> None:
    """Each has a bus of its own, as two processes have."""
    seen = dict[str, list[str]]()

    def app_of(name: str) -> holdfast.App:
        app = holdfast.App()
        seen[name] = []

        @app.handler(CHANNEL, CONSUMER, concurrency=1, prefetch=1, **SHORT)
        async def work(event: holdfast.Event, job: holdfast.Job) -> None:
            seen[name].append(event.id)
            try:
                await asyncio.Event().wait()
            finally:
                seen[name].append(f"{event.id} {job.cancelled}")

        return app

    await publish(backend, "a", "b")
    async with (
        holdfast.connect(database) as one,
        holdfast.connect(database) as two,
        shift(app_of("one"), one, grace="0s"),
        shift(app_of("two"), two, grace="0s"),
    ):
        await holds(lambda: [len(each) for each in seen.values()] == [1, 1])
        holder = next(name for name, each in seen.items() if each == ["a"])
        await cancel(one, "a")
        await holds(lambda: seen[holder] == ["a", "a True"])
        other = next(name for name in seen if name != holder)
        assert seen[other] == ["b"]
    assert await states(backend) == {State.CANCELLED: 1, State.READY: 1}
