"""The shop of `holdfast up --demo`: what it publishes, and that its handlers fail in several ways."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import holdfast
from holdfast.bus.handler import Handler
from holdfast.cli.demo.shop import BUSY, QUIET, WAVE, ShopService, demo_config, handlers, next_event, rate
from holdfast.config.load import check
from holdfast.contracts import ConsumerStats
from holdfast.model.states import State
from kit import until


def test_the_rate_is_small_and_bounded() -> None:
    found = [rate(second) for second in range(int(WAVE) * 2)]
    assert (min(found), max(found)) == (QUIET, BUSY)


async def test_the_handlers_fail_in_several_ways_and_seldom() -> None:
    chance, failures, attempts = random.Random(7), Counter[str](), []

    async def attempt(handler: Handler, event: holdfast.Event) -> None:
        # A second attempt: what fails once only, and by chance, does not count here.
        job = holdfast.Job("1", handler.channel, handler.consumer, event, "", 2, 0, 1, lease_until=None)  # type: ignore[arg-type]
        try:
            await handler.bind(None)(job)
        except Exception as error:
            failures[f"{handler.consumer}: {type(error).__name__}"] += 1

    for _ in range(2000):
        channel, event = next_event(chance)
        attempts += [attempt(each, event) for each in handlers.handlers if each.channel == channel]
    await asyncio.gather(*attempts)
    assert set(failures) == {
        "billing: Terminal",
        "ledger: ValueError",
        "mailer: ConnectionRefusedError",
        "shipping: KeyError",
    }
    assert 0.005 < failures.total() / len(attempts) < 0.05


async def test_the_shop_works_until_it_is_closed_and_leaves_nothing_half_done(database: str) -> None:
    async with holdfast.connect(database) as bus:
        running = asyncio.create_task(ShopService(bus).run())

        async def jobs(state: State) -> int:
            stats = [each async for each in _stats(bus)]
            return sum(each.states.get(state, 0) for each in stats)

        async def some_done() -> bool:
            return await jobs(State.DONE) >= 3

        await until(some_done, 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await jobs(State.LEASED) == 0


async def _stats(bus: holdfast.Bus) -> AsyncIterator[ConsumerStats]:
    store = bus.partitions.all[0].backend
    for each in await store.channels.consumers():
        yield await store.channels.consumer_stats(each.channel, each.name)


def test_the_demo_writes_its_configuration_unless_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    mine = tmp_path / "mine.yaml"
    assert demo_config(mine) == mine
    assert not (tmp_path / ".holdfast").exists()
    written = demo_config(None)
    assert written is not None
    config = check(written).config
    assert (len(config.archive_streams), len(config.ingest.channels)) == (1, 1)
    monkeypatch.setenv("HOLDFAST_CONFIG", str(mine))
    assert demo_config(None) is None
