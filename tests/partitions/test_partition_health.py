"""A failed read marks a partition faulty: no new items, out of distribution, until a read succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from spread import eventually, id_of, key_of, logged

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.leases import Leases
from holdfast.backends.postgres.lifecycle import Lifecycle
from holdfast.backends.postgres.session import Session
from holdfast.bus.partitions import Partition
from holdfast.contracts import Reading
from holdfast.model.decide import Due, DueKind
from holdfast.upkeep import lifecycle as health_module
from holdfast.upkeep.lifecycle import Health
from kit import CHANNEL, CONSUMER, until

WELL, ILL = 0, 1


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch, urls: list[str]) -> list[str]:
    """Stores whose lifecycle cannot be read: those whose URL is in the list."""
    chosen: list[str] = []
    due = Lifecycle.due

    async def read(self: Lifecycle, limit: int) -> Reading:
        if self._session.url in chosen:
            raise holdfast.Unavailable("the read failed")
        return await due(self, limit)

    monkeypatch.setattr(Lifecycle, "due", read)
    return chosen


async def fall_ill(bus: holdfast.Bus) -> None:
    with pytest.raises(holdfast.Unavailable):
        await bus.partitions.all[ILL].step()


async def test_a_failed_read_refuses_new_items_until_one_succeeds(
    bus: holdfast.Bus, urls: list[str], blind: list[str]
) -> None:
    # Seed 002. The store itself would take the event: its partition must not.
    await bus.subscribe(CHANNEL, CONSUMER)
    blind.append(urls[ILL])
    await fall_ill(bus)
    assert [partition.health.faulty for partition in bus.partitions.all] == [False, True]
    assert "the read failed" in bus.partitions.all[ILL].health.reason
    for key, name in ((key_of(ILL), None), (None, id_of(ILL))):
        with pytest.raises(holdfast.Unavailable):
            await bus.publish(CHANNEL, {}, key=key, id=name)
    assert await logged(bus, ILL) == []

    blind.clear()
    await eventually(lambda: bus.publish(CHANNEL, {}, id=id_of(ILL)))
    assert not bus.partitions.all[ILL].health.faulty
    assert await logged(bus, ILL) == [id_of(ILL)]


async def test_a_faulty_partition_is_out_of_distribution(
    bus: holdfast.Bus, urls: list[str], blind: list[str]
) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    await bus.publish(CHANNEL, {}, id=id_of(ILL))
    blind.append(urls[ILL])
    await fall_ill(bus)
    bus.partitions.all[WELL].health.load = 1000
    for _ in range(5):
        await bus.publish(CHANNEL, {})
    assert len(await logged(bus, WELL)) == 5
    assert {job.partition for job in await bus.poll(CHANNEL, CONSUMER, limit=10)} == {WELL}

    blind.clear()

    async def polled() -> bool:
        return [job.partition for job in await bus.poll(CHANNEL, CONSUMER)] == [ILL]

    await until(polled)


async def test_a_lease_of_a_faulty_partition_can_still_be_ended(
    bus: holdfast.Bus, urls: list[str], blind: list[str]
) -> None:
    """Only new items are refused: what was begun there goes on."""
    await bus.subscribe(CHANNEL, CONSUMER)
    await bus.publish(CHANNEL, {}, id=id_of(ILL))
    [job] = await bus.poll(CHANNEL, CONSUMER)
    blind.append(urls[ILL])
    await fall_ill(bus)
    await bus.extend(job, "1m")
    await bus.finalize(job, success=True)


async def test_a_read_that_fails_for_any_reason_marks_the_partition_faulty(
    bus: holdfast.Bus, urls: list[str]
) -> None:
    """Not only an unreachable store: a read that the server refuses is a failed read as well."""
    await bus.subscribe(CHANNEL, CONSUMER)
    with psycopg.connect(urls[ILL], autocommit=True) as own:
        own.execute("ALTER TABLE holdfast.jobs RENAME TO mislaid")
        with pytest.raises(holdfast.HoldfastError):
            await bus.partitions.all[ILL].step()
        assert bus.partitions.all[ILL].health.faulty
        await bus.publish(CHANNEL, {}, id=id_of(WELL))
        assert len(await bus.poll(CHANNEL, CONSUMER)) == 1
        own.execute("ALTER TABLE holdfast.mislaid RENAME TO jobs")
    await eventually(lambda: bus.publish(CHANNEL, {}, id=id_of(ILL)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time by which health waits."""
    now = 1000.0

    def move(by: float) -> None:
        nonlocal now
        now += by

    monkeypatch.setattr(health_module.time, "monotonic", lambda: now)
    return move


def test_tries_back_off_with_jitter_up_to_a_limit_and_start_over_when_healed(
    clock: Callable[[float], None],
) -> None:
    health = Health()
    assert health.worth_trying
    for wait in (0.2, 0.4, 0.8, 1.5, 1.5):
        health.failed("gone")
        assert not health.worth_trying
        clock(wait * 0.49)
        assert not health.worth_trying
        clock(wait * 0.52)
        assert health.worth_trying
    health.succeeded(7)
    assert (health.faulty, health.reason, health.load, health.worth_trying) == (False, "", 7, True)
    health.failed("again")
    clock(0.201)
    assert health.worth_trying


async def test_while_it_waits_for_the_next_try_nobody_asks_the_store(
    bus: holdfast.Bus, urls: list[str], blind: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    blind.append(urls[ILL])
    await fall_ill(bus)
    monkeypatch.setattr(Health, "worth_trying", property(lambda self: not self.faulty))
    asked: list[str] = []
    rows = Session.rows

    async def note(self: Session, name: str, **parameters: object) -> list[tuple[Any, ...]]:
        asked.append(self.url)
        return await rows(self, name, **parameters)

    monkeypatch.setattr(Session, "rows", note)
    await bus.publish(CHANNEL, {})
    assert len(await bus.poll(CHANNEL, CONSUMER)) == 1
    with pytest.raises(holdfast.Unavailable):
        await bus.publish(CHANNEL, {}, key=key_of(ILL))
    assert set(asked) == {urls[WELL]}


@pytest.mark.parametrize("broken", [holdfast.NotFound("no such consumer"), RuntimeError("no known kind")])
async def test_an_error_of_one_store_does_not_cost_what_another_has_leased_to_us(
    bus: holdfast.Bus, urls: list[str], monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    """Thrown away with the error, those leases would run out, and each would spend an abandonment."""
    await bus.subscribe(CHANNEL, CONSUMER)
    claim = Leases.claim

    async def fail_there(self: Leases, *options: Any) -> list[holdfast.Job]:
        if self._session.url == urls[ILL]:
            raise broken
        return await claim(self, *options)

    monkeypatch.setattr(Leases, "claim", fail_there)
    names = [id_of(WELL, number) for number in range(2)]
    for name in names:  # whichever store is asked first
        await bus.publish(CHANNEL, {}, id=name)
        assert [job.event.id for job in await bus.poll(CHANNEL, CONSUMER, limit=10)] == [name]
    with pytest.raises(type(broken)):
        await bus.poll(CHANNEL, CONSUMER)


async def test_a_step_that_breaks_does_not_cost_what_was_leased(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    await bus.publish(CHANNEL, {}, id=id_of(WELL))

    async def broken(self: Lifecycle, actions: Any) -> None:
        raise RuntimeError("no known kind")

    async def due(self: Lifecycle, limit: int) -> Reading:
        return Reading([Due(DueKind.SCHEDULE, (1,), 1, 0, 0, False, 1, 1)], [], 1, full=False)

    monkeypatch.setattr(Lifecycle, "due", due)
    monkeypatch.setattr(Lifecycle, "apply", broken)
    monkeypatch.setattr(Partition, "overdue", True)
    assert len(await bus.poll(CHANNEL, CONSUMER)) == 1


async def test_many_who_need_a_store_open_it_once(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened, begin = list[str](), PostgresBackend.open

    async def count(self: PostgresBackend) -> list[str]:
        opened.append(self.url)
        return await begin(self)

    monkeypatch.setattr(PostgresBackend, "open", count)
    bus = holdfast.connect(urls)
    try:
        await asyncio.gather(*(bus.partitions.ready(bus.partitions.all[WELL]) for _ in range(5)))
    finally:
        await bus.close()
    assert opened == [urls[WELL]]
