"""A server that came back without the newest of what it had acknowledged."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.embedded import Nats
from holdfast.model.errors import LockLost
from kit import MINUTE, claim_one, complete, publish, subscribe


async def test_a_token_that_was_lost_is_not_given_again(tmp_path: Path) -> None:
    server = Nats(tmp_path / "nats").start()
    first, second = NatsBackend(server.url), NatsBackend(server.url)
    data, kept = tmp_path / "nats" / "data", tmp_path / "kept"
    try:
        await first.open()
        await subscribe(first)
        await publish(first, "a")
        await asyncio.to_thread(server.kill)
        shutil.copytree(data, kept)
        await asyncio.to_thread(server.start)
        lost = await claim_one(first)
        lock = await first.locks.acquire("gbe:lock:sweeper", "first", MINUTE)
        assert lock is not None
        await asyncio.to_thread(server.kill)
        shutil.rmtree(data)
        shutil.move(kept, data)
        await asyncio.to_thread(server.start)
        await second.open()
        job = await claim_one(second)
        taken = await second.locks.acquire("gbe:lock:sweeper", "first", MINUTE)
        assert taken is not None
        assert (job.id, job.token > lost.token, taken.token > lock.token) == (lost.id, True, True)
        assert not await complete(first, lost)
        with pytest.raises(LockLost):
            await first.locks.renew(lock, MINUTE)
        assert await complete(second, job)
    finally:
        await first.close()
        await second.close()
        server.stop()
