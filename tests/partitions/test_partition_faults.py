"""A dead store degrades only itself, and heals by itself."""

from __future__ import annotations

import asyncio

import pytest
from spread import eventually, id_of, key_of, logged, state_of

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, calm_clock, until

LIVES, DIES = 0, 1
BOUND = 2.0
"""A store that does not answer may not cost the others' callers more than this."""


async def killed(bus: holdfast.Bus, mortal: Postgres) -> None:
    """Kill the second store, and let the bus notice."""
    await asyncio.to_thread(mortal.kill)

    async def noticed() -> bool:
        await bus.poll(CHANNEL, CONSUMER)
        return bus.partitions.all[DIES].health.faulty

    await until(noticed)


async def test_a_dead_store_fails_what_belongs_to_it_and_nothing_else(
    frail: list[str], mortal: Postgres
) -> None:
    async with holdfast.connect(frail) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await killed(bus, mortal)
        for key, name in ((key_of(DIES), None), (None, id_of(DIES))):
            with pytest.raises(holdfast.Unavailable):
                await bus.publish(CHANNEL, {}, key=key, id=name)
        await bus.publish(CHANNEL, {}, key=key_of(LIVES), id="keyed")
        await bus.publish(CHANNEL, {}, id=id_of(LIVES))
        loose = [await bus.publish(CHANNEL, {}) for _ in range(4)]
        wanted = ["keyed", id_of(LIVES), *(receipt.id for receipt in loose)]
        assert await logged(bus, LIVES) == wanted
        jobs = await bus.poll(CHANNEL, CONSUMER, limit=10)
        assert [job.event.id for job in jobs] == wanted
        await bus.finalize_many(jobs, success=True)
        assert {await state_of(bus, LIVES, name) for name in wanted} == {State.DONE}


@pytest.mark.parametrize("success", [True, False])
async def test_a_finalize_of_jobs_of_a_dead_store_ends_those_of_the_others(
    frail: list[str], mortal: Postgres, success: bool
) -> None:
    async with holdfast.connect(frail) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, max_attempts=1)
        for index in (DIES, LIVES):
            await bus.publish(CHANNEL, {}, id=id_of(index))
        jobs = await bus.poll(CHANNEL, CONSUMER, limit=2)
        await asyncio.to_thread(mortal.kill)
        with pytest.raises(holdfast.Unavailable):
            await bus.finalize_many(
                sorted(jobs, key=lambda job: job.partition, reverse=True), success=success
            )
        assert await state_of(bus, LIVES, id_of(LIVES)) is (State.DONE if success else State.DEAD)


async def test_a_dead_store_does_not_slow_the_others_down(frail: list[str], mortal: Postgres) -> None:
    async with holdfast.connect(frail) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await asyncio.to_thread(mortal.kill)
        slowest = 0.0
        async with calm_clock() as now:
            while now() < 3:
                start = now()
                await bus.publish(CHANNEL, {}, key=key_of(LIVES))
                [job] = await bus.poll(CHANNEL, CONSUMER)
                await bus.finalize(job, success=True)
                slowest = max(slowest, now() - start)
                await asyncio.sleep(0.02)
        assert slowest < BOUND


async def test_a_publish_to_a_dead_store_fails_in_good_time(frail: list[str], mortal: Postgres) -> None:
    """It is asked again for a moment, as its outcome may be unknown; a refused connection is no riddle."""
    async with holdfast.connect(frail) as bus:
        await bus.publish(CHANNEL, {}, key=key_of(DIES))
        await asyncio.to_thread(mortal.kill)
        async with calm_clock() as now:
            with pytest.raises(holdfast.Unavailable):
                await bus.publish(CHANNEL, {}, key=key_of(DIES))
            assert now() < 8


async def test_a_store_that_comes_back_is_used_again_without_anybodys_help(
    frail: list[str], mortal: Postgres
) -> None:
    async with holdfast.connect(frail) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, {}, id=id_of(DIES, 0))
        await killed(bus, mortal)
        await asyncio.to_thread(mortal.start)
        await eventually(lambda: bus.publish(CHANNEL, {}, id=id_of(DIES, 1)))
        assert not bus.partitions.all[DIES].health.faulty
        jobs = await bus.poll(CHANNEL, CONSUMER, limit=10)
        assert [job.event.id for job in jobs] == [id_of(DIES, 0), id_of(DIES, 1)]


async def test_a_bus_opens_while_one_of_its_stores_is_dead_and_takes_it_in_later(
    frail: list[str], mortal: Postgres
) -> None:
    async with holdfast.connect(frail) as before:
        await before.subscribe(CHANNEL, CONSUMER)
    await asyncio.to_thread(mortal.kill)
    async with holdfast.connect(frail) as bus:
        await bus.publish(CHANNEL, {}, id=id_of(LIVES))
        assert len(await bus.poll(CHANNEL, CONSUMER)) == 1
        await asyncio.to_thread(mortal.start)
        await eventually(lambda: bus.publish(CHANNEL, {}, id=id_of(DIES)))
        [job] = await bus.poll(CHANNEL, CONSUMER)
        assert (job.event.id, job.partition) == (id_of(DIES), DIES)


async def test_no_store_at_all_is_said_at_once(mortal: Postgres, frail: list[str]) -> None:
    await asyncio.to_thread(mortal.kill)
    with pytest.raises(holdfast.Unavailable):
        async with holdfast.connect(frail[DIES:]):
            pass


def working_app() -> tuple[holdfast.App, set[str]]:
    app, seen = holdfast.App(), set[str]()

    @app.handler(CHANNEL, CONSUMER)
    async def work(event: holdfast.Event) -> None:
        seen.add(event.id)

    return app, seen


@pytest.mark.parametrize("new", [False, True])
async def test_a_worker_starts_while_one_of_its_stores_is_dead_and_takes_it_in_later(
    frail: list[str], mortal: Postgres, new: bool
) -> None:
    """A new store does not know the consumer yet: it gets it before it takes any event."""
    app, seen = working_app()
    async with holdfast.connect(frail[: DIES if new else None]) as before:
        await before.subscribe(CHANNEL, CONSUMER)
    await asyncio.to_thread(mortal.kill)
    stop = asyncio.Event()
    async with holdfast.connect(frail) as bus:
        running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms"))
        try:

            async def saw(name: str) -> bool:
                await eventually(lambda: bus.publish(CHANNEL, {}, id=name))
                return name in seen or running.done()

            await until(lambda: saw(id_of(LIVES)), 10)
            await asyncio.to_thread(mortal.start)
            await until(lambda: saw(id_of(DIES)), 30)
        finally:
            stop.set()
            [outcome] = await asyncio.gather(running, return_exceptions=True)
        assert outcome is None
        assert id_of(DIES) in seen


@pytest.mark.parametrize("new", [False, True])
async def test_a_lifecycle_that_keeps_failing_does_not_keep_its_store_from_healing(
    frail: list[str], mortal: Postgres, new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failed step puts off the next try: it must not be put off for ever. A new store has no schema."""
    # As after some time of failures: the next try is a second or two away, the next step one second.
    monkeypatch.setattr("holdfast.upkeep.lifecycle._RETRY_PAUSES", (2.0, 2.0))
    if not new:
        async with holdfast.connect(frail):
            pass
    await asyncio.to_thread(mortal.kill)
    async with holdfast.connect(frail) as bus:
        keeping_time = asyncio.create_task(bus.partitions.all[DIES].lifecycle.run())
        try:
            await asyncio.to_thread(mortal.start)
            await eventually(lambda: bus.publish(CHANNEL, {}, id=id_of(DIES)), 12)
        finally:
            keeping_time.cancel()
            await asyncio.wait([keeping_time])
