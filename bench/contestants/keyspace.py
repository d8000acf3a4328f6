"""The bystander's view of a contestant's keys on Redis."""

from __future__ import annotations

import redis.asyncio as redis

from . import Counts


class Keyspace:
    """Counts over a connection of its own: the numbers that the commands answer add up to what waits.

    Of what is done there is no trace.
    """

    def __init__(self, url: str, *waiting: tuple[str, ...]) -> None:
        self.client = redis.Redis.from_url(url)
        self.waiting = waiting

    async def counts(self) -> Counts:
        return Counts(sum(await numbers(self.client, *self.waiting)), None)

    async def close(self) -> None:
        await self.client.aclose()


class Group:
    """Counts of one consumer group on a stream from which nothing is deleted."""

    def __init__(self, url: str, stream: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.stream = stream

    async def counts(self) -> Counts:
        (group,) = await self.client.xinfo_groups(self.stream)
        # What is handed out after this answer still counts as unread: nothing waiting is ever overlooked.
        unread = await self.client.xrange(self.stream, "(" + group["last-delivered-id"].decode())
        waiting = group["pending"] + len(unread or ())
        return Counts(waiting, await self.client.xlen(self.stream) - waiting)

    async def close(self) -> None:
        await self.client.aclose()


async def numbers(client: redis.Redis, *commands: tuple[str, ...]) -> list[int]:
    """What the commands answer at one moment."""
    async with client.pipeline(transaction=True) as asked:
        for command in commands:
            asked.execute_command(*command)
        return [int(answer or 0) for answer in await asked.execute()]
