"""Channels and worker consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

from holdfast import failpoints
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import LOCK_TRIES, LOCK_WAIT, Session, gave_way
from holdfast.contracts import Backlog, ChannelStats, Consumer, ConsumerStats, JobTimes, Start
from holdfast.model.deadletters import Removal
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.policy import Policy
from holdfast.model.states import State


class Channels:
    """Creates, changes and describes channels and consumers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def subscribe(
        self,
        channel: str,
        consumer: str,
        policy: Policy,
        start: Start = "latest",
        *,
        revision: int | None = None,
    ) -> Consumer:
        parameters = {
            "channel": channel,
            "consumer": consumer,
            "policy": orjson.dumps(policy.stored()).decode(),
            "lease": policy.lease,
            "expires_after": policy.expires_after,
            "ordered": policy.ordered,
            "discard": policy.on_dead == "discard",
            "dead_letter": policy.dead_letter,
            "max_depth": policy.max_depth,
            "start": _start(start),
            "revision": revision,
        }
        return _consumer(await self._excluding(parameters, "subscribe", "consumers"))

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        (ref,) = await self._excluding({"channel": channel, "consumer": consumer}, "begin_removal")
        if ref is None:
            raise _no_consumer(channel, consumer)
        failpoints.hit("remove.after_mark")
        row = await self._session.row("remove_step", consumer=ref, limit=limit)
        assert row is not None  # noqa: S101 - a function with OUT parameters always returns a row
        failpoints.hit("remove.after_step")
        return Removal(*row)

    async def _excluding(self, parameters: dict[str, Any], *queries: str) -> tuple[Any, ...]:
        """Run queries in one transaction, which waits for publishers where it sets a bound; returns the last
        one's first row."""
        for _ in range(LOCK_TRIES):
            async with self._giving_way() as connection:
                for query in queries:
                    cursor = await connection.execute(QUERIES[query], parameters)
                return tuple(await cursor.fetchone())
        pids = [pid for (pid,) in await self._session.rows("publishers", channel=parameters["channel"])]
        busy = f"publishes held open by server process {pids}; finish those transactions, then try again"
        if not pids:
            busy = "a trim, a recount, an open transaction that completes a job, or another change; try again"
        raise Unavailable(f"channel {parameters['channel']!r} has {busy}")

    @asynccontextmanager
    async def _giving_way(self) -> AsyncIterator[Any]:
        # Whoever waits for a publisher's open transaction makes later publishes wait behind it; a subscribe
        # or a removal therefore waits briefly, gives way, and tries again.
        try:
            # Bounding a consumer that has many jobs counts them once.
            async with self._session.connection(patience=60) as connection, connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
                yield connection
        except Unavailable as error:
            if not gave_way(error):
                raise

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        return _consumer(await self._find(channel, consumer))

    async def consumers(self, channel: str | None = None) -> list[Consumer]:
        rows = await self._session.rows("consumers", channel=channel, consumer=None)
        return [_consumer(row) for row in rows]

    async def consumer_stats(self, channel: str, consumer: str) -> ConsumerStats:
        ref = (await self._find(channel, consumer))[-1]
        rows = await self._session.rows("states", consumer=ref)
        states: Counter[State] = Counter()
        due: dict[str, datetime] = {}
        for name, count, at in rows:  # of a state, once with rows and once in the log
            states[State(name)] += count
            if at is not None:
                due[name] = min(at, due.get(name, at))
        return ConsumerStats(dict(+states), due.get("ready"), due.get("scheduled"))

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        if await self._session.row("set_paused", channel=channel, consumer=consumer, paused=paused) is None:
            raise _no_consumer(channel, consumer)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        if consumer is None:
            if await self._session.row("display_channel", channel=channel, display=display) is None:
                raise _no_channel(channel)
            return
        names = {"channel": channel, "consumer": consumer}
        if await self._session.row("display_consumer", **names, display=display) is None:
            raise _no_consumer(channel, consumer)

    async def create(self, channel: str) -> None:
        await self._session.row("create_channel", channel=channel)

    async def names(self) -> list[str]:
        return [name for (name,) in await self._session.rows("channels")]

    async def stats(self, channel: str) -> ChannelStats:
        row = await self._session.row("channel_stats", channel=channel)
        if row is None:
            raise _no_channel(channel)
        return ChannelStats(*row)

    async def backlogs(self, limit: int) -> list[Backlog]:
        return [
            Backlog(channel, consumer, _live(ready, leased, scheduled), oldest)
            for channel, consumer, ready, leased, scheduled, oldest in await self._session.rows(
                "backlogs", limit=limit
            )
        ]

    async def job_times(self) -> list[JobTimes]:
        return [
            JobTimes(channel, consumer, _span(due, last_due), _span(died, last_died))
            for channel, consumer, due, last_due, died, last_died in await self._session.rows("job_times")
        ]

    async def _find(self, channel: str, consumer: str) -> tuple[Any, ...]:
        row = await self._session.row("consumers", channel=channel, consumer=consumer)
        if row is None:
            raise _no_consumer(channel, consumer)
        return row


def _no_channel(channel: str) -> NotFound:
    return NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")


def _no_consumer(channel: str, consumer: str) -> NotFound:
    return NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")


def _consumer(row: tuple[Any, ...]) -> Consumer:
    channel, name, policy, *rest = row[:-1]
    return Consumer(channel, name, Policy.from_json(policy), *rest)


def _start(start: Start) -> datetime | None:
    if start == "latest":
        return None
    return datetime.min.replace(tzinfo=UTC) if start == "earliest" else start


def _span(oldest: datetime | None, newest: datetime) -> tuple[datetime, datetime] | None:
    return None if oldest is None else (oldest, newest)


def _live(ready: int, leased: int, scheduled: int) -> dict[State, int]:
    return {State.READY: ready, State.LEASED: leased, State.SCHEDULED: scheduled}
