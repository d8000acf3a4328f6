"""Many at once: whoever loses a race for the same message steps aside, and all of them get on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.batch import Batches, Message, Stale
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from kit import CHANNEL, MINUTE, claim, ids, publish, read_all, subscribe

pytestmark = pytest.mark.concurrency


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server has refused since somebody else came first."""
    told: list[str] = []
    commit = Batches.commit

    async def watched(self: Batches, messages: Sequence[Message]) -> int:
        try:
            return await commit(self, messages)
        except Stale as error:
            told.append(str(error))
            raise

    monkeypatch.setattr(Batches, "commit", watched)
    return told


async def test_many_processes_make_channels_at_once(backend: NatsBackend) -> None:
    """Each one changes the stream's subjects, which the server lets everybody overwrite, and the registry."""
    others = [backend.fork() for _ in range(8)]
    for other in others:
        await other.open()

    async def begin(number: int) -> None:
        for turn in range(4):
            await publish(others[number], "a", channel=f"made.by-{number}.{turn}")

    try:
        await asyncio.gather(*map(begin, range(len(others))))
        channels = await backend.channels()
        assert len(channels) == 4 * len(others)
        assert [len(await read_all(backend, channel)) for channel in channels] == [1] * len(channels)
    finally:
        for other in others:
            await other.close()


async def test_consumers_that_appear_and_go_disturb_no_trim_and_no_list(backend: NatsBackend) -> None:
    """A reader of cursors learns of a new consumer from the registry before it knows where it begins."""
    await publish(backend, "a")
    other = backend.fork()
    await other.open()
    lock = await backend.lock("sweeper", "tester", MINUTE)
    assert lock is not None
    before = await backend.now()

    async def come_and_go() -> None:
        for turn in range(12):
            await other.subscribe(CHANNEL, f"consumer{turn}", Policy.of(), "earliest")

    try:
        working = asyncio.create_task(come_and_go())
        while not working.done():
            await asyncio.gather(
                backend.trim(CHANNEL, before, 10, lock), backend.cursors(), backend.consumers()
            )
        await working
        assert len(await backend.consumers(CHANNEL)) == 12
    finally:
        await other.close()


async def test_a_key_whose_later_jobs_are_cancelled_is_claimed_at_once(
    backend: NatsBackend, refusals: list[str]
) -> None:
    """The end of each of them offers the first one again, which must not be twice in one batch."""
    await subscribe(backend, ordered=True)
    await backend.publish(CHANNEL, [Event(1, name, key="k") for name in "abcd"])
    for name in "bc":
        assert await backend.cancel(CHANNEL, "default", name, None) == 1
    assert ids(await claim(backend)) == ["a"]
    assert refusals == []
