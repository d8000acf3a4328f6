"""Names: what cannot become a key or a path is refused by a typed error that names it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidName, InvalidPolicy
from kit import CHANNEL, CONSUMER

BAD_NAMES = ["", "Orders", "a b", "a/b", "a..b", ".a", "a.", "*", "a.>", "a\x00b", "\ud800", "ä", "x" * 129]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_bad_names_are_refused_by_name(bus: Bus, backend: Backend, name: str) -> None:
    calls: list[Awaitable[Any]] = [
        bus.publish(name, 1),
        bus.subscribe(name, CONSUMER),
        bus.subscribe(CHANNEL, name),
        bus.create_channel(name),
    ]
    for call in calls:
        with pytest.raises(InvalidName) as caught:
            await call
        assert repr(name) in str(caught.value)
    with pytest.raises(InvalidPolicy) as refused:
        await bus.subscribe(CHANNEL, CONSUMER, dead_letter=name)
    assert repr(name) in str(refused.value)
    assert await backend.channels.names() == []


@pytest.mark.parametrize("name", ["nowhere", *BAD_NAMES])
async def test_no_verb_lets_an_untyped_error_through_for_a_bad_name(bus: Bus, name: str) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.poll(name, CONSUMER),
        lambda: bus.poll(CHANNEL, name),
        lambda: bus.cancel(name, "a"),
        lambda: bus.cancel(CHANNEL, name),
        lambda: bus.cancel(CHANNEL, "a", source=name),
        lambda: bus.cancel(CHANNEL, "a", consumer=name),
        lambda: bus.find_jobs(name, "a"),
        lambda: bus.find_jobs(CHANNEL, name),
        lambda: bus.requeue(name, CONSUMER, "1"),
        lambda: bus.requeue(CHANNEL, CONSUMER, name),
        lambda: bus.read(name),
        lambda: bus.read(CHANNEL, after=name),
    ]
    for call in calls:
        try:
            assert await call() in (0, False, []), "there is nothing of that name"
        except holdfast.HoldfastError:
            continue


@pytest.mark.parametrize("name", ["a", "0", "gbe.events.audit.change", "a-b_c.d", "x" * 128])
async def test_good_names_work_everywhere(bus: Bus, name: str) -> None:
    await bus.subscribe(name, name)
    await bus.publish(name, 1)
    [job] = await bus.poll(name, name)
    await bus.finalize(job, success=True)
