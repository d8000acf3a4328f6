"""Many at once: whoever loses a race for the same message steps aside, and all of them get on."""

from __future__ import annotations

import asyncio

from holdfast.backends.nats import NatsBackend
from kit import publish, read_all


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
