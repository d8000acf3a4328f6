"""Channels and worker consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import psycopg

from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Session
from holdfast.contracts import ChannelStats, Consumer, ConsumerStats, Start
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.job import State
from holdfast.model.policy import Policy

# A subscribe that waits for a publisher's open transaction makes later publishers wait behind it; it
# therefore waits briefly, gives way, and tries again.
_LOCK_WAIT = "500ms"
_LOCK_TRIES = 20


class Consumers:
    """Creates, changes and describes channels and consumers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def subscribe(self, channel: str, consumer: str, policy: Policy, start: Start) -> Consumer:
        """Create a consumer or change its policy."""
        parameters = {
            "channel": channel,
            "consumer": consumer,
            "policy": orjson.dumps(policy.to_json()).decode(),
            "lease": policy.lease,
            "expires_after": policy.expires_after,
            "ordered": policy.ordered,
            "discard": policy.on_dead == "discard",
            "dead_letter": policy.dead_letter,
            "max_depth": policy.max_depth,
            "start": _start(start),
        }
        for _ in range(_LOCK_TRIES):
            async with self._giving_way() as connection:
                await connection.execute(QUERIES["subscribe"], parameters)
                return await self.consumer(channel, consumer, connection)
        pids = [pid for (pid,) in await self._session.rows("publishers", channel=channel)]
        raise Unavailable(
            f"channel {channel!r} has publishes held open by server process {pids}; "
            "finish those transactions, then subscribe again"
        )

    @asynccontextmanager
    async def _giving_way(self) -> AsyncIterator[Any]:
        try:
            # Bounding a consumer that has many jobs counts them once.
            async with self._session.connection(patience=60) as connection, connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
                yield connection
        except Unavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise

    async def consumer(self, channel: str, consumer: str, connection: Any = None) -> Consumer:
        """One consumer, or `NotFound`."""
        found = await self._find(channel, consumer, connection)
        return _consumer(found)

    async def consumers(self, channel: str | None) -> list[Consumer]:
        """All consumers of a channel, or of all."""
        rows = await self._session.rows("consumers", channel=channel, consumer=None)
        return [_consumer(row) for row in rows]

    async def stats(self, channel: str, consumer: str) -> ConsumerStats:
        """Jobs by state. Counts what is live; the dead are a sum of a few rows."""
        ref = (await self._find(channel, consumer))[6]
        rows = await self._session.rows("states", consumer=ref)
        states = {State(name): count for name, count, _ in rows if count}
        due = {name: at for name, _, at in rows}
        return ConsumerStats(states, due.get("ready"), due.get("scheduled"))

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        """Stop or resume handing out jobs."""
        if await self._session.row("set_paused", channel=channel, consumer=consumer, paused=paused) is None:
            raise _no_consumer(channel, consumer)

    async def create_channel(self, channel: str) -> None:
        """Make sure that a channel exists."""
        await self._session.row("create_channel", channel=channel)

    async def channels(self) -> list[str]:
        """All channels by name."""
        return [name for (name,) in await self._session.rows("channels")]

    async def channel_stats(self, channel: str) -> ChannelStats:
        """One channel's log at a glance."""
        row = await self._session.row("channel_stats", channel=channel)
        if row is None:
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
        return ChannelStats(*row)

    async def _find(self, channel: str, consumer: str, connection: Any = None) -> tuple[Any, ...]:
        parameters = {"channel": channel, "consumer": consumer}
        if connection is not None:
            row = await (await connection.execute(QUERIES["consumers"], parameters)).fetchone()
        else:
            row = await self._session.row("consumers", **parameters)
        if row is None:
            raise _no_consumer(channel, consumer)
        return tuple(row)


def _no_consumer(channel: str, consumer: str) -> NotFound:
    return NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")


def _consumer(row: tuple[Any, ...]) -> Consumer:
    channel, name, policy, paused, created_at, backfilling, _ = row
    return Consumer(channel, name, Policy.from_json(policy), paused, created_at, backfilling)


def _start(start: Start) -> datetime | None:
    if start == "latest":
        return None
    return datetime.min.replace(tzinfo=UTC) if start == "earliest" else start
