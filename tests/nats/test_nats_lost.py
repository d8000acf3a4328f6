"""A server that came back without the newest of what it had acknowledged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire.batches import Batches, BatchMessage
from holdfast.embedded import Nats
from holdfast.model.errors import LockLost, Unavailable
from holdfast.model.job import Job
from kit import MINUTE, claim_one, complete, publish, subscribe


async def begin(server: Nats, backend: NatsBackend) -> None:
    """One event waits, and the server has ended."""
    await backend.open()
    await subscribe(backend)
    await publish(backend, "a")
    await asyncio.to_thread(server.kill)


async def test_a_token_that_was_lost_is_not_given_again(tmp_path: Path) -> None:
    server = Nats(tmp_path / "nats").start()
    first, second = NatsBackend(server.url), NatsBackend(server.url)
    data, kept = tmp_path / "nats" / "data", tmp_path / "kept"
    try:
        await begin(server, first)
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


async def test_a_claim_that_was_under_way_gives_no_lost_token_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decided on what is lost, and nobody has recognised the server that is there now."""
    server = Nats(tmp_path / "nats").start()
    first, second = NatsBackend(server.url), NatsBackend(server.url)
    data, kept, commit = tmp_path / "nats" / "data", tmp_path / "kept", Batches.commit
    lost = list[Job]()
    try:
        await begin(server, first)
        shutil.copytree(data, kept)
        await asyncio.to_thread(server.start)
        await second.open()

        async def late(self: Batches, messages: Sequence[BatchMessage], *given: Any) -> int:
            if self is second._store._committer._batches:
                monkeypatch.setattr(Batches, "commit", commit)
                lost.append(await claim_one(first))
                await asyncio.to_thread(server.kill)
                shutil.rmtree(data)
                shutil.move(kept, data)
                await asyncio.to_thread(server.start)
            return await commit(self, messages, *given)

        monkeypatch.setattr(Batches, "commit", late)
        with pytest.raises(Unavailable):
            await claim_one(second)
        job = await claim_one(second)
        assert (job.id, job.token > lost[0].token) == (lost[0].id, True)
        assert not await complete(first, lost[0])
        assert await complete(second, job)
    finally:
        await first.close()
        await second.close()
        server.stop()
