"""Folding and verifying: under one lock per store, only when it is time, and counts that stay exact."""

from __future__ import annotations

from datetime import timedelta

import pytest
from funeral import dead, die, later, store, subscribe

import holdfast
from holdfast import wiring
from holdfast.config.config import Config
from holdfast.deadletters import DeadLetters, Folding, folding
from holdfast.deadletters.folding import LOCK
from holdfast.model.errors import Unavailable

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
    monkeypatch.setattr(folding, "_TRIES", 1)
    held = await store(each).lock(LOCK, "somebody", MINUTE)
    assert held is not None
    assert (await Folding(store(each), "tester", fresh=timedelta(0)).fold()).skipped
    with pytest.raises(Unavailable, match=LOCK):
        await DeadLetters(each).verify()
    await store(each).unlock(held)
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
