"""Handlers: how they are called, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from shift import ended, holds, shift

import holdfast
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, record, state, until

BACK: dict[str, Any] = {"start": "earliest", "backoff": ["0s"]}


@pytest.mark.parametrize("takes_job", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_gets_its_event_and_its_job_if_it_asks_for_it(
    bus: holdfast.Bus, backend: Backend, plain: bool, takes_job: bool
) -> None:
    app, got = holdfast.App(), list[tuple[holdfast.Event, holdfast.Job | None]]()

    async def one(event: holdfast.Event) -> None:
        got.append((event, None))

    async def two(event: holdfast.Event, job: holdfast.Job) -> None:
        got.append((event, job))

    def plain_one(event: holdfast.Event) -> None:
        got.append((event, None))

    def plain_two(event: holdfast.Event, job: holdfast.Job) -> None:
        got.append((event, job))

    chosen = {(0, 0): one, (0, 1): two, (1, 0): plain_one, (1, 1): plain_two}[plain, takes_job]
    app.handler(CHANNEL, CONSUMER, start="earliest")(chosen)
    await bus.publish(CHANNEL, {"n": 7}, id="a", key="k", headers={"trace": "x"})
    async with shift(app, bus):
        await ended(backend, "a")
    [(event, job)] = got
    assert (event.id, event.json(), event.key, event.headers) == ("a", {"n": 7}, "k", {"trace": "x"})
    assert (job is not None) == takes_job
    if job is not None:
        assert (job.event, job.attempt, job.token, job.consumer) == (event, 1, 1, CONSUMER)


class Called:
    """Handlers of every form in which an async function may come."""

    def __init__(self) -> None:
        self.got: list[str] = []

    async def __call__(self, event: holdfast.Event) -> None:
        await asyncio.sleep(0)
        self.got.append(event.id)

    def form(self, name: str) -> Callable[[holdfast.Event], Awaitable[None]]:
        return {
            "an object": self,
            "a method": self.__call__,
            "a lambda": lambda event: self(event),
            "a partial of an object": partial(self),
            "a partial of a lambda": partial(lambda called, event: called(event), self),
        }[name]


@pytest.mark.parametrize(
    "form", ["an object", "a method", "a lambda", "a partial of an object", "a partial of a lambda"]
)
async def test_whatever_an_async_function_is_wrapped_in_it_is_awaited(
    bus: holdfast.Bus, backend: Backend, form: str
) -> None:
    app, called = holdfast.App(), Called()
    app.handler(CHANNEL, CONSUMER, start="earliest")(called.form(form))
    await publish(backend, "a")
    async with shift(app, bus):
        await ended(backend, "a")
    assert called.got == ["a"]


def _no_parameter() -> None: ...
def _three(event: holdfast.Event, job: holdfast.Job, more: int) -> None: ...
def _keyword(event: holdfast.Event, *, needed: int) -> None: ...
def _generator(event: holdfast.Event) -> Iterator[None]:
    yield


async def _async_generator(event: holdfast.Event) -> AsyncIterator[None]:
    yield


class _Yielding:
    def __call__(self, event: holdfast.Event) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_no_parameter, "takes \\(\\).*; it has to take the event, or the event and the job"),
        (_three, "takes .*more"),
        (_keyword, "takes .*needed"),
        (_generator, "has a yield"),
        (_async_generator, "has a yield"),
        (partial(_generator), "has a yield"),
        (_Yielding(), "has a yield"),
        (partial(_three, more=1, job=2, event=3), "takes"),
        (7, "cannot be called"),
        (type, "does not tell its parameters"),
    ],
)
def test_what_can_be_no_handler_is_refused_when_it_is_registered(function: Any, why: str) -> None:
    app = holdfast.App()
    with pytest.raises(holdfast.InvalidInput, match=f"of consumer {CONSUMER!r} of {CHANNEL!r} {why}"):
        app.handler(CHANNEL, CONSUMER)(function)
    assert app.handlers == []


@pytest.mark.parametrize("plain", [False, True])
async def test_only_a_parameter_with_a_place_gets_the_job(
    bus: holdfast.Bus, backend: Backend, plain: bool
) -> None:
    app, got = holdfast.App(), list[object]()

    def note(event: holdfast.Event, *, level: int = 3, **more: object) -> None:
        got.append((event.id, level, more))

    async def note_async(event: holdfast.Event, *, level: int = 3, **more: object) -> None:
        note(event, level=level, **more)

    app.handler(CHANNEL, CONSUMER, start="earliest", max_attempts=1)(note if plain else note_async)
    await publish(backend, "a")
    async with shift(app, bus):
        await ended(backend, "a")
    assert got == [("a", 3, {})]


async def test_a_plain_handler_blocks_a_thread_of_its_own_and_not_the_loop(
    bus: holdfast.Bus, backend: Backend
) -> None:
    app, blocked, go = holdfast.App(), threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    def block(event: holdfast.Event) -> None:
        threads.append(threading.current_thread())
        blocked.set()
        assert go.wait(20)

    await publish(backend, "a")
    async with shift(app, bus):
        await holds(blocked.is_set)  # this loop still runs, or it could not be waited for here
        assert (await record(backend, "a")).state is State.LEASED
        go.set()
        assert (await ended(backend, "a")).state is State.DONE
    assert threads[0] is not threading.current_thread()


async def test_terminal_buries_at_once(bus: holdfast.Bus, backend: Backend) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, max_attempts=9, **BACK)
    async def refuse(event: holdfast.Event) -> None:
        raise holdfast.Terminal("never")

    await publish(backend, "a")
    async with shift(app, bus):
        found = await ended(backend, "a")
    assert (found.state, found.reason, found.attempts) == (State.DEAD, "terminal", 1)
    assert [(error["error"], error["kind"]) for error in found.errors] == [("never", "Terminal")]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", [holdfast.Transient, ValueError])
async def test_any_other_error_is_retried_by_policy_and_every_attempts_error_is_kept(
    bus: holdfast.Bus, backend: Backend, kind: type[Exception], plain: bool
) -> None:
    # CORRECTIONS 001.3: an ordinary error is not terminal at once.
    app = holdfast.App()

    def fail(event: holdfast.Event, job: holdfast.Job) -> None:
        raise kind(f"no {job.attempt}")

    async def fail_async(event: holdfast.Event, job: holdfast.Job) -> None:
        fail(event, job)

    app.handler(CHANNEL, CONSUMER, max_attempts=3, **BACK)(fail if plain else fail_async)
    await publish(backend, "a")
    async with shift(app, bus):
        found = await ended(backend, "a")
    assert (found.state, found.reason, found.attempts) == (State.DEAD, "max_attempts", 3)
    assert [(e["attempt"], e["error"]) for e in found.errors] == [(1, "no 1"), (2, "no 2"), (3, "no 3")]
    assert {error["kind"] for error in found.errors} == {kind.__name__}


async def test_the_backoff_is_waited_for_in_the_stores_time(bus: holdfast.Bus, backend: Backend) -> None:
    app, seen = holdfast.App(), []

    @app.handler(CHANNEL, CONSUMER, max_attempts=3, start="earliest", backoff=["1h", "2h"])
    async def fail_twice(event: holdfast.Event, job: holdfast.Job) -> None:
        seen.append(job.attempt)
        if job.attempt < 3:
            raise holdfast.Transient("not yet")

    await publish(backend, "a")
    async with shift(app, bus):
        for attempt, hours in ((1, 1), (2, 2)):

            async def waits(attempt: int = attempt) -> bool:
                return seen == list(range(1, attempt + 1)) and await state(backend, "a") is State.SCHEDULED

            await until(waits)
            await backend.advance(timedelta(hours=hours, seconds=-60))
            assert not (await bus.partitions.all[0].step()).total
            await backend.advance(timedelta(seconds=60))
        found = await ended(backend, "a")
    assert (found.state, found.attempts, seen) == (State.DONE, 3, [1, 2, 3])


async def test_snooze_spends_no_budget(bus: holdfast.Bus, backend: Backend) -> None:
    app, seen = holdfast.App(), []

    @app.handler(CHANNEL, CONSUMER, max_attempts=1, start="earliest")
    async def later(event: holdfast.Event, job: holdfast.Job) -> None:
        seen.append(job.attempt)
        if len(seen) < 4:
            raise holdfast.Snooze(0)

    await publish(backend, "a")
    async with shift(app, bus):
        found = await ended(backend, "a")
    assert (found.state, found.attempts, found.errors, seen) == (State.DONE, 1, [], [1, 1, 1, 1])


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_over_its_timeout_has_failed(
    bus: holdfast.Bus, backend: Backend, plain: bool
) -> None:
    app, go = holdfast.App(), threading.Event()

    async def hang(event: holdfast.Event) -> None:
        await asyncio.Event().wait()

    def block(event: holdfast.Event) -> None:
        go.wait(120)

    app.handler(CHANNEL, CONSUMER, timeout="50ms", max_attempts=1, start="earliest")(block if plain else hang)
    await publish(backend, "a")
    began = time.monotonic()
    async with shift(app, bus):
        found = await ended(backend, "a")
        go.set()
    assert time.monotonic() - began < 60
    assert (found.state, found.reason, found.errors[0]["kind"]) == (
        State.DEAD,
        "max_attempts",
        "TimeoutError",
    )
