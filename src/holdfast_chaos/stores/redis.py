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
_JOB, _BLOCK = "{holdfast}:job:", "{holdfast}:block:"
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
            ready = {
                owner: (await opened.channels.consumer_stats(*owner)).states.get(State.READY, 0)
                for owner in found.terms
            }
        finally:
            await opened.close()
        async with self._client(url) as client:
            owners = await _owners(client, found)
            found.rows.extend(await _rows(client, owners))
            for ref, owner in owners.items():
                counts = await client.hgetall(f"{{holdfast}}:counts:{ref}")
                found.terms[owner].counted.update(dict.fromkeys(State, 0))
                found.terms[owner].counted.update({name: int(number) for name, number in counts.items()})
                # What waits in the log is no counter, but a difference.
                found.terms[owner].counted[State.READY] = ready[owner]
        return found


async def _owners(client: Client, found: FinalState) -> dict[str, Owner]:
    """The consumers by their numbers."""
    refs: dict[str, Owner] = {}
    for channel in {channel for channel, _ in found.terms}:
        known = await client.hgetall(f"{{holdfast}}:consumers:{channel}")
        refs |= {ref: (channel, name) for name, ref in known.items()}
    return refs


async def _rows(client: Client, owners: dict[str, Owner]) -> list[JobState]:
    jobs = await _hashes(client, _JOB)
    blocks = await _hashes(client, _BLOCK)
    rows = [_row(owners, name, fields) for name, fields in jobs.items()]
    members = [(name, *member) for name, fields in blocks.items() for member in _members(name, fields)]
    rows += [_row(owners, f"{_JOB}{ref}:{entry}", fields) for _, ref, entry, fields in members]
    for ref, owner in owners.items():
        waiting = await _waiting(client, ref, owner[0])
        rows += [_row(owners, f"{_JOB}{ref}:{entry}", {"state": "ready"}) for entry in waiting]
    leased = [_JOB + member for member in await client.zrange(_LEASES, 0, -1)]
    open_blocks = {
        f"{_JOB}{name.removeprefix(_BLOCK).replace(':', ':@')}"
        for name, _, _, fields in members
        if fields["state"] == "leased"
    }
    living = [
        f"{_JOB}{ref}:{entry}"
        for ref in owners
        for entry in await client.zrange(f"{{holdfast}}:live:{ref}", 0, -1)
    ]
    rows += [
        _row(owners, name, {"state": "leased"}) for name in open_blocks ^ {n for n in leased if ":@" in n}
    ]
    return rows + list(_strays(owners, jobs, [name for name in leased if ":@" not in name], living))


async def _hashes(client: Client, prefix: str) -> dict[str, Fields]:
    """Every hash of a kind, by its key."""
    names = sorted([key async for key in client.scan_iter(match=prefix + "*", count=1000)], key=_order)
    async with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(name)
        found = zip(names, await pipeline.execute(), strict=True)
    return {name: fields for name, fields in found if fields}


def _members(name: str, block: Fields) -> Iterator[tuple[str, str, Fields]]:
    """The consumer's number, the entry and the fields of each job that a block stands for."""
    _, _, ref, base = name.split(":")
    outcome = block.get("outcome", "done")
    states = block.get("states") or ("1" if int(block["left"]) else "0") * int(block["n"])
    for place, (entry, state) in enumerate(zip(_decoded(block["ids"]), states, strict=True)):
        if state != "x":
            fields = {"state": "leased" if state == "1" else outcome}
            if "outcome" not in block:
                fields |= {"attempts": "1", "token": str(int(base) + place)}
            yield ref, entry, fields


def _decoded(runs: str) -> Iterator[str]:
    """The entries of a block, whose form is described with the scripts."""
    milliseconds = 0
    for run in runs.split(" "):
        mark, _, many = run.partition("*")
        if mark.startswith("="):
            first, _, sequence = mark[1:].partition("-")
            milliseconds = int(first)
        else:
            first, _, sequence = mark.partition("-")
            milliseconds += int(first)
        for further in range(int(many or 1)):
            yield f"{milliseconds}-{int(sequence or 0) + further}"


async def _waiting(client: Client, ref: str, channel: str) -> list[str]:
    """What a consumer has not taken up, neither in its turn nor ahead of it."""
    cursor = await client.hget(f"{{holdfast}}:consumer:{ref}", "cursor")
    passed = [f"{{holdfast}}:{kind}:{channel}" for kind in ("special", "repeats")]
    skipped = {
        _unpadded(name)
        for key in (*passed, f"{{holdfast}}:ahead:{ref}")
        for name in await client.zrange(key, 0, -1)
    }
    entries = await client.xrange(channel.replace(".", ":"), f"({cursor}")
    return [entry for entry, _ in entries if entry not in skipped]


def _unpadded(name: str) -> str:
    milliseconds, _, sequence = name.partition("-")
    return f"{int(milliseconds)}-{int(sequence)}"


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
    return int(milliseconds), int(sequence or 0)


def _job_at(position: str) -> str:
    _, milliseconds, sequence = position.split("-")
    return f"{int(milliseconds, 16)}-{int(sequence, 16)}"
