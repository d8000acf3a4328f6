"""Robustness: whatever a handler or a store does, the worker goes on, or says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from shift import ended, shift

import holdfast
from holdfast import failpoints
from holdfast.backends.postgres import PostgresBackend
from holdfast.contracts import Backend
from holdfast.model.job import State
from kit import CHANNEL, CONSUMER, publish, states, until

ODD: dict[str, BaseException] = {
    "its own cancellation": asyncio.CancelledError("a task of the handler was cancelled"),
    "a snooze that is no duration": holdfast.Snooze("soon"),
    "a snooze into the past": holdfast.Snooze(-1),
    "an error that cannot be stored as it is": ValueError("\x00 \ud800"),
    "an error without words": ValueError(),
    "a group": ExceptionGroup("two", [ValueError("one"), ValueError("other")]),
}


@pytest.mark.parametrize("what", ODD)
async def test_an_odd_answer_fails_its_own_attempt_and_nothing_else(
    bus: holdfast.Bus, backend: Backend, what: str
) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, concurrency=1, max_attempts=1, start="earliest")
    async def odd(event: holdfast.Event) -> None:
        if event.id == "odd":
            raise ODD[what]

    await publish(backend, "odd", "even")
    async with shift(app, bus):

        async def even_is_done() -> bool:
            found = await bus.find_jobs(CHANNEL, "even")
            return bool(found) and found[0].state is State.DONE

        await until(even_is_done, 5)
        found = await ended(backend, "odd")
    assert (found.state, found.reason, len(found.errors)) == (State.DEAD, "max_attempts", 1)


async def test_an_answer_that_cannot_be_settled_does_not_hang_silently(
    bus: holdfast.Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the store answers with an error of no known kind: settle it later, or fail loudly."""
    app, broken, complete = holdfast.App(), [RuntimeError("no known kind")], PostgresBackend.complete

    async def complete_but_once(self: PostgresBackend, jobs: Sequence[holdfast.Job]) -> list[bool]:
        if broken:
            raise broken.pop()
        return await complete(self, jobs)

    monkeypatch.setattr(PostgresBackend, "complete", complete_but_once)

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    await publish(backend, "a")
    running = asyncio.create_task(app.run(bus, idle="100ms"))
    try:

        async def settled_or_said() -> bool:
            found = await bus.find_jobs(CHANNEL, "a")
            return running.done() or (bool(found) and found[0].state is State.DONE)

        await until(settled_or_said, 5)
    finally:
        running.cancel()
        await asyncio.wait([running], timeout=10)


async def test_an_error_of_the_runtime_itself_ends_the_app_with_that_error(
    bus: holdfast.Bus, backend: Backend
) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    await publish(backend, "a")
    with failpoints.active("worker.after_claim", "raise"), pytest.raises(failpoints.FailpointError):
        await asyncio.wait_for(app.run(bus, idle="100ms"), 10)


async def test_a_poll_that_is_refused_is_asked_again(
    bus: holdfast.Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, failures, claim = holdfast.App(), [holdfast.Unavailable("gone")] * 3, PostgresBackend.claim

    async def claim_later(self: PostgresBackend, *options: object) -> list[holdfast.Job]:
        if failures:
            raise failures.pop()
        return await claim(self, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresBackend, "claim", claim_later)

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    await publish(backend, "a")
    async with shift(app, bus):
        assert (await ended(backend, "a")).state is State.DONE
    assert await states(backend) == {State.DONE: 1}


async def test_what_cannot_run_is_refused_before_it_runs(bus: holdfast.Bus) -> None:
    app = holdfast.App()
    with pytest.raises(holdfast.InvalidInput, match="no handler"):
        await app.run(bus)

    @app.handler(CHANNEL, CONSUMER)
    async def work(event: holdfast.Event) -> None:
        return

    for idle in ("0s", "11s"):
        with pytest.raises(holdfast.InvalidInput, match="idle"):
            await app.run(bus, idle=idle)
    with pytest.raises(holdfast.InvalidInput, match="has a handler"):
        app.handler(CHANNEL, CONSUMER)
    for options in ({"concurrency": 0}, {"prefetch": 0}, {"timeout": "soon"}, {"lease": "1ms"}):
        with pytest.raises(holdfast.InvalidInput):
            app.handler(CHANNEL, "other", **options)
