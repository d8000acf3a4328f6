"""Store errors: a worker survives whatever its store raises, goes on, and counts it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.states import State
from holdfast.server.metrics import bus_metrics
from kit import CHANNEL, CONSUMER, Hooked, publish, state, states, subscribe, until
from stores import STORES

VERBS = ("claim", "complete", "retry", "bury", "due", "apply", "consumer", "listen")
_SHORT = {f"leases.{name}": name for name in VERBS[:4]} | {f"lifecycle.{name}": name for name in VERBS[4:6]}
_SHORT |= {"channels.consumer": "consumer", "listen": "listen"}


def breaking(backend: Backend, faults: dict[str, list[BaseException]]) -> Any:
    """A real backend whose verbs raise what a test says before they reach the store."""

    async def fail(name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if faults[name]:
            raise faults[name].pop()
        return await call(*arguments, **options)

    def hook(verb: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if verb == "fork":
            return breaking(call(), faults)
        name = _SHORT.get(verb)
        return call(*arguments, **options) if name is None else fail(name, call, *arguments, **options)

    return Hooked(backend, hook)


def unexpected(verb: str) -> BaseException:
    """An error that no backend documents; some are a cancellation that nobody asked for."""
    kinds: list[BaseException] = [
        psycopg.errors.UniqueViolation("jobs_pkey"),
        asyncio.CancelledError("a task of the client itself was cancelled"),
        TypeError("can't adapt type"),
        KeyError("reply"),
    ]
    return kinds[VERBS.index(verb) % len(kinds)]


@pytest.fixture
def faults() -> dict[str, list[BaseException]]:
    return defaultdict(list)


@pytest.fixture
async def raising(backend: Backend, faults: dict[str, list[BaseException]]) -> AsyncIterator[Bus]:
    """A bus over the store of `backend`."""
    async with Bus([breaking(backend.fork(), faults)]) as opened:
        yield opened


def counted(bus: Bus) -> set[tuple[str, str]]:
    """What the metric tells of: verb and error."""
    [errors] = [each for each in bus_metrics(bus) if each.name == "holdfast_store_errors"]
    return {(each.labels["verb"], each.labels["error"]) for each in errors.samples if each.value}


async def test_a_worker_survives_whatever_its_store_raises(
    raising: Bus, backend: Backend, faults: dict[str, list[BaseException]]
) -> None:
    app, runs = holdfast.App(), list[str]()

    @app.handler(CHANNEL, CONSUMER, start="earliest", concurrency=1, max_attempts=2, backoff=["0s"])
    async def work(event: holdfast.Event) -> None:
        runs.append(event.id)
        if event.id in ("refused", "flaky"):
            raise holdfast.Terminal("no") if event.id == "refused" else ValueError("not yet")

    await subscribe(backend)
    await publish(backend, "good", "refused", "flaky")
    faults |= {verb: [unexpected(verb)] for verb in VERBS}
    running = asyncio.create_task(app.run(raising, stop=(stop := asyncio.Event()), idle="100ms"))
    try:
        await reached(running, backend, {State.DONE: 1, State.DEAD: 2})
        await publish(backend, "due", at=await backend.now() + timedelta(hours=1))
        await backend.advance(timedelta(hours=2))
        await reached(running, backend, {State.DONE: 2, State.DEAD: 2})
        stop.set()
        await asyncio.wait_for(asyncio.shield(running), 60)
    finally:
        running.cancel()
        await asyncio.wait([running], timeout=60)
    assert runs == ["good", "refused", "flaky", "flaky", "due"]
    assert not any(faults.values()), "every verb has raised"
    told = counted(raising)
    for verb in VERBS:
        names = {"due": {"lifecycle"}, "apply": {"lifecycle"}, "consumer": {"consumer", "subscribe"}}
        kind = type(unexpected(verb)).__name__
        assert any((name, kind) in told for name in names.get(verb, {verb})), (verb, told)


async def reached(running: asyncio.Task[None], backend: Backend, wanted: dict[State, int]) -> None:
    """Wait until all jobs are where they should be, or the app has ended."""

    async def is_so() -> bool:
        return running.done() or await states(backend) == wanted

    await until(is_so)
    assert not running.done(), f"the app ended: {running}"


async def test_an_answer_that_the_store_cannot_take_holds_up_no_other(
    raising: Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease ends after a while: somebody else has the job then."""
    monkeypatch.setattr("holdfast.bus.finalize._TRIES", 2)
    app, complete = holdfast.App(), raising.partitions.all[0].backend.leases.complete

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    async def complete_others(jobs: Sequence[holdfast.Job]) -> list[bool]:
        if any(job.event.id == "poison" for job in jobs):
            raise ValueError("it cannot be written")
        return await complete(jobs)

    monkeypatch.setattr(raising.partitions.all[0].backend._target.leases, "complete", complete_others)
    await subscribe(backend)
    await publish(backend, "poison", "a", "b")
    running = asyncio.create_task(app.run(raising, stop=(stop := asyncio.Event()), idle="100ms"))
    try:
        await until(lambda: _settled(backend, "a", "b"))
        stop.set()
        await asyncio.wait_for(asyncio.shield(running), 60)
    finally:
        running.cancel()
        await asyncio.wait([running], timeout=60)
    assert await state(backend, "poison") is State.LEASED


async def _settled(backend: Backend, *names: str) -> bool:
    return all([await state(backend, name) is State.DONE for name in names])


@pytest.mark.parametrize("store", STORES, indirect=True)  # through a pooler nobody is woken
async def test_a_listener_goes_on_after_an_unknown_error(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while it listens is told, and it listens again."""
    for module in ("postgres.wakeups", "redis.listener", "nats.wire.listener"):
        monkeypatch.setattr(f"holdfast.backends.{module}._PAUSE", 0.01)
    errors, woken, broken = list[BaseException](), asyncio.Event(), [RuntimeError("once")]

    def wake(channel: str) -> None:
        if broken:
            raise broken.pop()
        woken.set()

    listener = await backend.listen([CHANNEL], wake, errors.append)
    try:
        await asyncio.wait_for(woken.wait(), 60)
        assert [str(error) for error in errors] == ["once"]
        woken.clear()
        await publish(backend, "a")
        await asyncio.wait_for(woken.wait(), 60)
    finally:
        await listener.close()


async def test_a_consumer_that_is_gone_ends_the_answers_to_its_jobs(bus: Bus, backend: Backend) -> None:
    """A failure is judged by a policy that is no longer there: the answer is refused, not asked for ever."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await bus.poll(CHANNEL, CONSUMER)
    while not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)).done:
        pass
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=False)
