"""What a message can hold: servers that take too little, jobs that failed too often, headers that grow."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state.frontiers import Frontier, Lease
from holdfast.backends.nats.wire.batches import BatchCommitter, Batches, state
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.stream import LEAST_PAYLOAD
from holdfast.embedded import Nats, files
from holdfast.model.decide import describe
from holdfast.model.errors import TooLarge
from holdfast.model.event import Event
from holdfast.model.job import Burial, Reason, Retry
from holdfast.model.states import State
from kit import CHANNEL, claim_one, publish, read_all, record, subscribe


class Narrow(Nats):
    """A server that takes messages of half the default size."""

    most = 524_288

    def prepare(self) -> None:
        super().prepare()
        config = self.folder / "nats.conf"
        files.write_private(config, f"max_payload: {self.most}\n{config.read_text()}")


class TooNarrow(Narrow):
    most = 524_287


async def test_a_server_that_takes_too_little_is_refused(tmp_path: Path) -> None:
    with TooNarrow(tmp_path, sync_interval="2m") as server:
        backend = NatsBackend(server.url)
        try:
            with pytest.raises(holdfast.HoldfastError, match=r"max_payload 524287, .* set it to 524288"):
                await backend.open()
        finally:
            await backend.close()


async def test_a_job_that_failed_very_often_can_still_end(tmp_path: Path) -> None:
    with Narrow(tmp_path, sync_interval="2m") as server:
        backend = NatsBackend(server.url)
        await backend.open()
        try:
            await subscribe(backend, max_attempts=1000)
            await publish(backend, "a")
            failures = [describe(f"{n} " + "\x01" * 4000) for n in range(30)]  # six bytes each in JSON
            for failure in failures[:-1]:
                assert await backend.leases.retry([Retry(await claim_one(backend), None, failure)]) == [True]
            burial = Burial(await claim_one(backend), Reason.TERMINAL, failures[-1])
            assert await backend.leases.bury([burial]) == [True]
            found = await record(backend, "a")
            assert (found.state, found.attempts) == (State.DEAD, 30)
            assert [error["error"] for error in found.errors] == [
                failure.error for failure in (*failures[:5], *failures[-10:])
            ]
        finally:
            await backend.close()


@pytest.mark.parametrize("size", [10, 950_000, 1_000_000, 1_030_000, 1_048_000, 1_048_576])
async def test_headers_of_any_text_fit_beside_data_of_any_size(backend: NatsBackend, size: int) -> None:
    """Percent-encoded they are three times as long, and a message that is too long costs the connection."""
    text = "\N{HEDGEHOG}" * 512
    headers = {f"h{n}": "漢" * 80 for n in range(60)}
    event = Event(b"x" * size, text, text, text, text, headers=headers)
    await backend.log.publish(CHANNEL, [event])
    [entry] = await read_all(backend)
    assert entry.event._replace(time=None) == event


async def test_what_is_too_large_takes_nobody_with_it(backend: NatsBackend, relaxed_nats: Nats) -> None:
    connection = NatsConnection(relaxed_nats.url)
    await connection.open()
    try:
        committer = BatchCommitter(Batches(connection))
        under_way = [committer.commit([state(f"HF.X.before.{n}", b"1")]) for n in range(2)]
        large = committer.commit([state("HF.X.large", b"x" * 1_048_576)])
        small = committer.commit([state("HF.X.small", b"1")])
        *_, refused, taken = await asyncio.gather(*under_way, large, small, return_exceptions=True)
        assert isinstance(refused, TooLarge)
        assert isinstance(taken, int)
    finally:
        await connection.close()


def test_a_frontier_of_large_leases_with_gaps_stays_below_what_every_server_takes() -> None:
    """Claims of hundreds of events, of a channel among many others."""
    chance, frontier = random.Random(1), Frontier(0)
    while not frontier.is_crowded:
        members = list(accumulate(chance.choices(range(2, 200), k=899), initial=frontier.at + 1))
        lease = Lease.of(frontier.token + 1, 1 << 50, "host.example.com:12345:0123456789abcdef", members)
        frontier = replace(frontier, at=lease.last, token=lease.token, leases=(*frontier.leases, lease))
    assert len(frontier.encode()) < LEAST_PAYLOAD * 3 // 4
