"""Folding and verifying: under one lock per store, only when it is time, and counts that stay exact."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dead_kit import dead, die, later, store, subscribe

import holdfast
from holdfast import wiring
from holdfast.config.config import Config
from holdfast.deadletters import DeadLetters, Folding, service
from holdfast.deadletters.service import LOCK
from holdfast.model.errors import Unavailable
from holdfast.model.policy import Policy
from holdfast.server.services import FoldingService
from kit import CHANNEL, CONSUMER

MINUTE = timedelta(minutes=1)


async def test_it_is_skipped_while_the_summary_is_fresh(bus: holdfast.Bus, letters: DeadLetters) -> None:
    await subscribe(bus)
    await die(bus, "a", "b")
    await later(bus, 11 * MINUTE)
    [first] = await letters.fold()
    assert (first.skipped, first.folded > 0) == (False, True)
    await die(bus, "c")
    [second] = await letters.fold()
    assert (second.skipped, second.folded, await dead(bus)) == (True, 0, 3)
    await later(bus, 11 * MINUTE)
    [third] = await letters.fold()
    assert (third.skipped, third.folded > 0, third.bootstrapped) == (False, True, False)
    assert await dead(bus) == 3


async def test_it_comes_sooner_when_deltas_pile_up(bus: holdfast.Bus) -> None:
    await subscribe(bus)
    await Folding(store(bus), "tester").fold()
    await die(bus, *"abcdef")
    assert (await Folding(store(bus), "tester", most=100).fold()).skipped
    assert (await Folding(store(bus), "tester", most=3).fold()).folded > 3
    assert await dead(bus) == 6


async def test_one_is_at_it_at_a_time(each: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    # CORRECTIONS 004.5
    monkeypatch.setattr(service, "_TRIES", 1)
    held = await store(each).locks.acquire(LOCK, "somebody", MINUTE)
    assert held is not None
    assert (await Folding(store(each), "tester", fresh=timedelta(0)).fold()).skipped
    with pytest.raises(Unavailable, match=LOCK):
        await DeadLetters(each).verify()
    await store(each).locks.release(held)
    assert not (await Folding(store(each), "tester", fresh=timedelta(0)).fold()).skipped
    assert await DeadLetters(each).verify() == []


async def test_the_sweeper_folds(bus: holdfast.Bus) -> None:
    await subscribe(bus)
    await wiring.sweeper(store(bus), Config(), "tester").run_once()
    await die(bus, "a", "b")
    await later(bus, 11 * MINUTE)
    report = await wiring.sweeper(store(bus), Config(), "tester").run_once()
    assert report is not None
    assert report.chores["folded"] > 0
    assert await dead(bus) == 2


async def test_the_interval_is_a_setting(bus: holdfast.Bus) -> None:
    config = Config.model_validate({"dlq": {"interval": "1m"}})
    await subscribe(bus)
    await wiring.sweeper(store(bus), config, "tester").run_once()
    await die(bus, "a", "b")
    await later(bus, 2 * MINUTE)
    report = await wiring.sweeper(store(bus), config, "tester").run_once()
    assert report is not None
    assert report.chores["folded"] > 0
    assert await dead(bus) == 2


async def test_instances_without_a_sweeper_fold_once_between_them(each: holdfast.Bus) -> None:
    await subscribe(each)
    parts = [FoldingService(each.partitions, f"instance-{name}", 10 * MINUTE) for name in "ab"]
    await parts[0].run_once()
    await die(each, "a", "b")
    await later(each, 11 * MINUTE)
    counted = await asyncio.gather(*(part.run_once() for part in parts))
    left = await Folding(store(each), "tester", fresh=timedelta(0)).fold()
    deltas = 2 if store(each).url.startswith("postgres") else 0  # the others keep counters
    assert (sum(counted), left.folded, await dead(each)) == (deltas, 0, 2)
    assert sorted(counted)[0] == 0


async def test_a_store_that_does_not_answer_keeps_no_other_from_being_folded(database: str) -> None:
    async with holdfast.connect(["redis://127.0.0.1:1/0", database]) as bus:
        await store(bus, 1).channels.subscribe(CHANNEL, CONSUMER, Policy())
        part = FoldingService(bus.partitions, "tester", MINUTE)
        assert await part.run_once() == 0
        assert part.status().startswith("partition 0: ")
        assert (await Folding(store(bus, 1), "tester").fold()).skipped  # it is fresh: it was just folded
