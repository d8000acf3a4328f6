"""Routing: which store an event belongs to, and when a faulty one is asked again."""

from __future__ import annotations

from collections import Counter
from unittest.mock import AsyncMock, create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bus.partitions import Partitions, home
from holdfast.bus.publish import Publisher
from holdfast.contracts import Backend, Capabilities, Reading
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event, Receipt
from holdfast.model.upkeep import StateRecord
from holdfast.upkeep.lifecycle import Health

names = st.text(min_size=1, max_size=20)


def _receipts(channel: str, events: list[Event], **_: object) -> list[Receipt]:
    return [Receipt(event.id, "p") for event in events]


def stores(*loads: int | None) -> Partitions:
    """Partitions over stand-ins with that many live jobs each; None is one that never answers."""
    backends = []
    for load in loads:
        backend = create_autospec(Backend, instance=True)
        backend.capabilities = Capabilities(joins_transactions=True)
        backend.url = f"postgresql://host-{len(backends)}/db"
        backend.records.get = AsyncMock(return_value=StateRecord("name", {"name": str(len(backends))}, 1))
        if load is None:
            backend.open = AsyncMock(side_effect=Unavailable("it is down"))
        else:
            backend.lifecycle.due = AsyncMock(return_value=Reading([], [], load, full=False))
            backend.log.publish = AsyncMock(side_effect=_receipts)
        backends.append(backend)
    return Partitions(backends)


def published(partitions: Partitions) -> list[list[str]]:
    """The ids that each store was asked to append."""
    calls = [partition.backend.log.publish.call_args_list for partition in partitions.all]  # type: ignore[attr-defined]
    return [[event.id for call in each for event in call.args[1]] for each in calls]


def id_of(index: int, count: int) -> str:
    """An id whose home is that store."""
    return next(str(n) for n in range(1000) if home("orders", Event(1, str(n)), count) == index)


@given(names, names | st.none(), names | st.just(""), st.integers(1, 16))
def test_home_is_one_of_the_configured_stores_and_always_the_same(
    channel: str, key: str | None, event_id: str, count: int
) -> None:
    event = Event(1, event_id, key=key)
    found = home(channel, event, count)
    assert found == home(channel, Event(2, event_id, key=key), count)
    assert (found is None) == (key is None and not event_id)
    assert found is None or 0 <= found < count


def test_homes_are_pinned() -> None:
    """A key must find its earlier events after an upgrade too: change this only knowingly."""
    found = [home("orders", Event(1, f"o-{n}"), 4) for n in range(8)]
    assert found == [1, 3, 3, 0, 2, 3, 2, 1]
    assert [home("orders", Event(1, key=f"k-{n}"), 4) for n in range(8)] == [0, 1, 1, 1, 2, 2, 1, 0]


@given(names, names, names, st.integers(1, 16))
def test_a_key_decides_alone(key: str, one: str, other: str, count: int) -> None:
    first, second = Event(1, one, key=key), Event(1, other, source="elsewhere", key=key)
    assert home("orders", first, count) == home("orders", second, count)


def test_source_and_channel_are_part_of_an_id() -> None:
    homes = {home(channel, Event(1, "a", source=source), 1 << 30) for channel in "ab" for source in "ab"}
    assert len(homes) == 4


def test_ids_spread_evenly() -> None:
    counts = Counter(home("orders", Event(1, f"order-{n}"), 4) for n in range(4000))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 850


async def test_an_event_with_an_id_goes_home_however_loaded_it_is() -> None:
    partitions = stores(0, 10**9)
    await partitions.open()
    names = [id_of(0, 2), id_of(1, 2)]
    receipts = await Publisher(partitions).publish(
        "orders", [Event(1, n) for n in names[::-1]], None, 0, None
    )
    assert published(partitions) == [[names[0]], [names[1]]]
    assert [receipt.id for receipt in receipts] == names[::-1], "in the order of the events"


async def test_an_event_without_id_or_key_goes_to_the_least_loaded_store() -> None:
    partitions = stores(50, 3, 20)
    await partitions.open()
    await Publisher(partitions).publish("orders", [Event(1), Event(2)], None, 0, None)
    assert [len(each) for each in published(partitions)] == [0, 2, 0]


async def test_a_dead_store_degrades_only_itself() -> None:
    partitions = stores(5, None)
    await partitions.open()
    publisher = Publisher(partitions)
    await publisher.publish("orders", [Event(1), Event(1, id_of(0, 2))], None, 0, None)
    with pytest.raises(Unavailable, match="it is down"):
        await publisher.publish("orders", [Event(1, id_of(1, 2))], None, 0, None)
    assert [len(each) for each in published(partitions)] == [2, 0]
    assert [partition.index for partition in await partitions.usable()] == [0]


async def test_no_store_at_all_is_an_error_with_its_reason() -> None:
    with pytest.raises(Unavailable, match="it is down"):
        await stores(None, None).open()


async def test_an_unknown_outcome_is_asked_again_with_the_same_id_at_the_same_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.bus.publish._PAUSE", 0)
    partitions = stores(0, 5)
    await partitions.open()
    asked: list[str] = []

    async def lose_the_answer(channel: str, events: list[Event], **_: object) -> list[Receipt]:
        asked.append(events[0].id)
        if len(asked) < 3:
            raise Unavailable("the reply was lost")
        return [Receipt(events[0].id, "p", duplicate=True)]

    partitions.all[0].backend.log.publish.side_effect = lose_the_answer  # type: ignore[attr-defined]
    [receipt] = await Publisher(partitions).publish("orders", [Event(1)], None, 0, None)
    assert asked == [receipt.id] * 3
    assert published(partitions)[1] == []


async def test_a_publish_in_the_callers_transaction_is_not_repeated() -> None:
    partitions = stores(0)
    await partitions.open()
    partitions.all[0].backend.log.publish.side_effect = Unavailable("cut")  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await Publisher(partitions).publish("orders", [Event(1)], None, 0, object())
    assert partitions.all[0].backend.log.publish.call_count == 1  # type: ignore[attr-defined]


async def test_polls_take_turns_over_the_stores() -> None:
    partitions = stores(0, 0, 0)
    await partitions.open()
    first = [(await partitions.usable())[0].index for _ in range(6)]
    assert Counter(first) == {0: 2, 1: 2, 2: 2}


def test_a_faulty_store_is_asked_again_after_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    health, pauses = Health(), []
    for _ in range(12):
        health.failed("down")
        assert (health.faulty, health.worth_trying, health.reason) == (True, False, "down")
        begun = clock
        while not health.worth_trying:
            clock += 0.05
        pauses.append(clock - begun)
    assert pauses[0] <= 0.3
    assert 0.7 <= pauses[-1] <= 1.6, "it stops growing"
    health.succeeded(3)
    assert (health.faulty, health.worth_trying, health.load) == (False, True, 3)
    health.failed("again")
    clock += 0.25
    assert health.worth_trying, "a success forgets the past"
