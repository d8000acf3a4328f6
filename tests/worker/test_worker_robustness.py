"""Robustness: whatever a handler or a store does, the worker goes on, or says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest
from shift import ended, shift

import holdfast
from holdfast import failpoints
from holdfast.backends.postgres.leases import Leases
from holdfast.backends.postgres.lifecycle import Lifecycle as PostgresLifecycle
from holdfast.bus.app import run_lifecycle
from holdfast.bus.heartbeat import Heartbeat
from holdfast.contracts import Applied, Backend
from holdfast.model.decide import Action
from holdfast.model.states import State
from holdfast.upkeep.lifecycle import Health, LifecycleSteps
from kit import CHANNEL, CONSUMER, claim_one, publish, record, states, subscribe, until

REFUSING = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE unique_violation USING MESSAGE = 'jobs_pkey'; END$$;
    CREATE TRIGGER refuse BEFORE INSERT ON holdfast.jobs FOR EACH ROW EXECUTE FUNCTION refuse();
"""
ODD: dict[str, BaseException] = {
    "its own cancellation": asyncio.CancelledError("a task of the handler was cancelled"),
    "a snooze that is no duration": holdfast.Snooze("soon"),
    "a snooze into the past": holdfast.Snooze(-1),
    "an error that cannot be stored as it is": ValueError("\x00 \ud800"),
    "an error without words": ValueError(),
    "a group": ExceptionGroup("two", [ValueError("one"), ValueError("other")]),
    "a group of exits": BaseExceptionGroup("one", [SystemExit(3)]),
    "an exit": SystemExit(3),
    "the end of an iterator": StopIteration("none left"),
}
ODD_IN_A_THREAD: dict[str, BaseException] = ODD | {
    "an interrupt": KeyboardInterrupt(),
    "the end of a generator": GeneratorExit(),
}


@pytest.mark.parametrize(
    ("what", "plain"), [*((what, False) for what in ODD), *((what, True) for what in ODD_IN_A_THREAD)]
)
async def test_an_odd_answer_fails_its_own_attempt_and_nothing_else(
    bus: holdfast.Bus, backend: Backend, what: str, plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = holdfast.App()

    def odd(event: holdfast.Event) -> None:
        if event.id == "odd":
            raise ODD_IN_A_THREAD[what]

    async def odd_async(event: holdfast.Event) -> None:
        odd(event)

    handler = app.handler(CHANNEL, CONSUMER, concurrency=1, max_attempts=1, start="earliest")
    handler(odd if plain else odd_async)
    await publish(backend, "odd", "even")
    async with shift(app, bus):
        assert (await ended(backend, "even")).state is State.DONE
        found = await ended(backend, "odd")
    assert (found.state, found.reason, len(found.errors)) == (State.DEAD, "max_attempts", 1)
    [said] = [entry.getMessage() for entry in caplog.records if "event odd" in entry.getMessage()]
    assert said.startswith(f"{CHANNEL}/{CONSUMER}: attempt 1 at event odd failed: ")


async def test_an_answer_that_cannot_be_settled_does_not_hang_silently(
    bus: holdfast.Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the store answers with an error of no known kind: settle it later, or fail loudly."""
    app, broken, complete = holdfast.App(), [RuntimeError("no known kind")], Leases.complete

    async def complete_but_once(self: Leases, jobs: Sequence[holdfast.Job]) -> list[bool]:
        if broken:
            raise broken.pop()
        return await complete(self, jobs)

    monkeypatch.setattr(Leases, "complete", complete_but_once)

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    await publish(backend, "a")
    running = asyncio.create_task(app.run(bus, idle="100ms"))
    try:

        async def settled_or_said() -> bool:
            found = await bus.find_jobs(CHANNEL, "a")
            return running.done() or (bool(found) and found[0].state is State.DONE)

        await until(settled_or_said)
    finally:
        running.cancel()
        await asyncio.wait([running], timeout=60)


async def test_an_error_of_the_runtime_itself_ends_the_app_with_that_error(
    bus: holdfast.Bus, backend: Backend
) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    await publish(backend, "a")
    with failpoints.active("worker.after_claim", "raise"), pytest.raises(failpoints.FailpointError):
        await asyncio.wait_for(app.run(bus, idle="100ms"), 60)


async def test_a_poll_that_is_refused_is_asked_again(
    bus: holdfast.Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, failures, claim = holdfast.App(), [holdfast.Unavailable("gone")] * 3, Leases.claim

    async def claim_later(self: Leases, *options: object) -> list[holdfast.Job]:
        if failures:
            raise failures.pop()
        return await claim(self, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(Leases, "claim", claim_later)

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    await publish(backend, "a")
    async with shift(app, bus):
        assert (await ended(backend, "a")).state is State.DONE
    assert await states(backend) == {State.DONE: 1}


async def test_a_worker_outlives_a_server_that_refuses_its_claims(
    bus: holdfast.Bus, backend: Backend, database: str
) -> None:
    """The server itself raises what no contract documents, at every claim, until somebody repairs it."""
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        return

    async def refused_twice() -> bool:
        return bus.partitions.all[0].errors["claim", "UniqueViolation"] >= 2

    await publish(backend, "a")
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
        await admin.execute(REFUSING)
        async with shift(app, bus) as running:
            await until(refused_twice)
            await admin.execute("DROP FUNCTION refuse CASCADE")
            assert (await ended(backend, "a")).state is State.DONE
            assert not running.done()


async def test_a_lifecycle_that_meets_an_unknown_error_goes_on(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, apply = [RuntimeError("no known kind")], PostgresLifecycle.apply

    async def apply_but_once(self: PostgresLifecycle, actions: Sequence[Action]) -> Applied:
        if broken:
            raise broken.pop()
        return await apply(self, actions)

    monkeypatch.setattr(PostgresLifecycle, "apply", apply_but_once)
    await subscribe(backend)
    await publish(backend, "a", at=await backend.now() + timedelta(minutes=1))
    await backend.advance(timedelta(minutes=2))
    keeping_time = asyncio.create_task(run_lifecycle(LifecycleSteps(backend, Health())))

    async def promoted() -> bool:
        return await states(backend) == {State.READY: 1}

    await until(promoted)
    keeping_time.cancel()
    await asyncio.wait([keeping_time])


async def test_a_heart_that_meets_an_unknown_error_beats_on(
    bus: holdfast.Bus, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, extend = [RuntimeError("no known kind")], Leases.extend

    async def extend_but_once(self: Leases, jobs: Sequence[holdfast.Job], by: timedelta) -> list[bool]:
        if broken:
            raise broken.pop()
        return await extend(self, jobs, by)

    monkeypatch.setattr(Leases, "extend", extend_but_once)
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    async with Heartbeat(bus, timedelta(milliseconds=30), asyncio.get_running_loop()) as heart:
        heart.watch([job], timedelta(hours=1), lambda _: None)

        async def extended() -> bool:
            now = (await record(backend, "a")).lease_until
            return now is not None and now > job.lease_until

        await until(extended, 30)
    assert bus.partitions.all[0].errors == {("extend", "RuntimeError"): 1}


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
    for options in (
        {"concurrency": 0},
        {"prefetch": 0},
        {"timeout": "soon"},
        {"timeout": 0},
        {"lease": "1ms"},
    ):
        with pytest.raises(holdfast.InvalidInput):
            app.handler(CHANNEL, "other", **options)
