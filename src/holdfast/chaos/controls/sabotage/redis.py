"""What can be done to Redis behind the back of the bus, with a plain client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from redis import asyncio as redis

from holdfast.chaos.controls.sabotage.contract import Sabotage, had_effect
from holdfast.chaos.rig import CHANNEL

Client = Any
"""The library's types do not know that it decodes."""
_JOB, _LEASES = "{holdfast}:job:", "{holdfast}:due:lease"


def _with_client(work: Callable[[Client], Awaitable[bool]]) -> Sabotage:
    async def execute(url: str) -> None:
        async with redis.Redis.from_url(url, decode_responses=True, socket_timeout=60) as client:
            had_effect(await work(client))

    return execute


def _each(*command: str, state: str = "done") -> Sabotage:
    """A command for every job in that state; JOB stands for its key, MEMBER for its name in a set."""

    async def work(client: Client) -> bool:
        found = 0
        async for key in client.scan_iter(match=_JOB + "*"):
            if await client.hget(key, "state") == state:
                names = {"JOB": key, "MEMBER": key.removeprefix(_JOB)}
                await client.execute_command(*(names.get(word, word) for word in command))
                found += 1
        return found > 0

    return _with_client(work)


async def _drop_an_event(client: Client) -> bool:
    entries = await client.xrange(CHANNEL, count=2)
    return bool(await client.xdel(CHANNEL, entries[1][0]))


async def _trim_a_running_job(client: Client) -> bool:
    [(last, _)] = await client.xrevrange(CHANNEL, count=1)
    await client.hset(f"{{holdfast}}:log:{CHANNEL}", "trimmed", last)
    return bool(await client.xdel(CHANNEL, last))


async def _forget_a_dead_letter(client: Client) -> bool:
    keys = [key async for key in client.scan_iter(match="{holdfast}:counts:*")]
    return any([await client.hdel(key, "dead:terminal") for key in keys])


SABOTAGE: Mapping[str, Sabotage] = {
    "an event is lost with its job": _with_client(_drop_an_event),
    "a done job vanishes": _each("DEL", "JOB"),
    "a done job is live again": _each("ZADD", _LEASES, "1", "MEMBER"),
    "a dead letter goes uncounted": _with_client(_forget_a_dead_letter),
    "a job gets an attempt too many": _each("HSET", "JOB", "attempts", "6"),
    "a job is done that nobody completed": _each("HSET", "JOB", "state", "done", state="leased"),
    "a token falls": _each("HSET", "JOB", "token", "0", state="leased"),
    "a done job has another token": _each("HINCRBY", "JOB", "token", "1"),
    "a running job loses its event": _with_client(_trim_a_running_job),
}
