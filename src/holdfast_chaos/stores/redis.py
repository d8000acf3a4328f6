"""Redis under the rig, with every write synced: jobs and counters as a plain client reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from redis import asyncio as redis

from holdfast.embedded import Redis
from holdfast.model.states import LIVE, State
from holdfast.wiring import backend
from holdfast_chaos.final_state import FinalState, JobState, Owner, ServerUnderTest, contract_state

Client = Any
"""A plain client; the library's types do not know that it decodes."""
_JOB = "{holdfast}:job:"
_LEASES = "{holdfast}:due:lease"
Fields = dict[str, str]


class RedisStore(ServerUnderTest):
    """The whole server is the store."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, durable: bool = True) -> None:
        super().__init__(Redis(folder, appendfsync="always" if durable else "everysec").start())

    def _client(self, url: str) -> Client:
        return redis.Redis.from_url(url, decode_responses=True, socket_timeout=60)

    async def empty(self) -> str:
        async with self._client(self.server.url) as client:
            await client.flushall()
        return self.server.url

    async def final_state(self, url: str) -> FinalState:
        opened = backend(url, connections=1)
        await opened.open()
        try:
            found = await contract_state(opened, _job_at)
        finally:
            await opened.close()
        async with self._client(url) as client:
            owners = await _owners(client, found)
            found.rows.extend(await _rows(client, owners))
            for ref, owner in owners.items():
                counts = await client.hgetall(f"{{holdfast}}:counts:{ref}")
                found.terms[owner].counted.update(dict.fromkeys(State, 0))
                found.terms[owner].counted.update({name: int(number) for name, number in counts.items()})
        return found


async def _owners(client: Client, found: FinalState) -> dict[str, Owner]:
    """The consumers by their numbers."""
    refs: dict[str, Owner] = {}
    for channel in {channel for channel, _ in found.terms}:
        known = await client.hgetall(f"{{holdfast}}:consumers:{channel}")
        refs |= {ref: (channel, name) for name, ref in known.items()}
    return refs


async def _rows(client: Client, owners: dict[str, Owner]) -> list[JobState]:
    names = sorted([key async for key in client.scan_iter(match=_JOB + "*", count=1000)], key=_order)
    async with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(name)
        jobs: dict[str, Fields] = dict(zip(names, await pipeline.execute(), strict=True))
    rows = [_row(owners, name, fields) for name, fields in jobs.items()]
    leased = [_JOB + member for member in await client.zrange(_LEASES, 0, -1)]
    living = [
        f"{_JOB}{ref}:{entry}"
        for ref in owners
        for entry in await client.zrange(f"{{holdfast}}:live:{ref}", 0, -1)
    ]
    return rows + list(_strays(owners, jobs, leased, living))


def _strays(
    owners: dict[str, Owner], jobs: dict[str, Fields], leased: list[str], living: list[str]
) -> Iterator[JobState]:
    """Jobs that stand in a set of which their record says otherwise: another place for the same job."""
    for name in leased:
        if jobs.get(name, {}).get("state") != "leased":
            yield _row(owners, name, jobs.get(name, {}) | {"state": "leased"})
    for name in set(living) ^ {name for name, fields in jobs.items() if fields["state"] in LIVE}:
        yield _row(owners, name, jobs.get(name, {}) | {"state": "ready"})


def _row(owners: dict[str, Owner], name: str, fields: Fields) -> JobState:
    ref, _, entry = name.removeprefix(_JOB).partition(":")
    attempts, abandonments, token = (
        int(fields.get(name, 0)) for name in ("attempts", "abandonments", "token")
    )
    owner = owners.get(ref, ("", f"removed-{ref}"))  # what is left of somebody who is gone
    return JobState(*owner, entry, fields["state"], attempts, abandonments, token, fields.get("reason"))


def _order(name: str) -> Any:
    milliseconds, _, sequence = name.rpartition(":")[2].partition("-")
    return int(milliseconds), int(sequence)


def _job_at(position: str) -> str:
    _, milliseconds, sequence = position.split("-")
    return f"{int(milliseconds, 16)}-{int(sequence, 16)}"
