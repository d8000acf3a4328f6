"""Channels and their worker consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from holdfast import failpoints
from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import from_micros, named, pairs, to_micros
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.log import Log
from holdfast.backends.redis.session import Session
from holdfast.contracts import Backlog, ChannelStats, Consumer, ConsumerStats, JobTimes, Start
from holdfast.model.deadletters import Removal
from holdfast.model.errors import NotFound
from holdfast.model.names import check_stored
from holdfast.model.policy import Policy
from holdfast.model.states import LIVE, State

_STATES = {state.value: state for state in State}
# A removal: rows in one script (the server does nothing else meanwhile), and scripts in one step.
_REMOVAL_ROWS, _REMOVAL_SCRIPTS = 250, 50
_PAGE = 100  # consumers in one script
_WAITING = "waiting"


class Channels:
    """Counts come from counters that move with every transition, and from where frontiers are."""

    def __init__(self, session: Session, log: Log) -> None:
        self._session, self._log = session, log

    async def create(self, channel: str) -> None:
        await self._session.run("channels/create", channel)

    async def names(self) -> list[str]:
        return sorted(name.decode() for name in await self._session.call("HKEYS", keys.CHANNELS))

    async def stats(self, channel: str) -> ChannelStats:
        answer = await self._session.run("channels/stats", channel)
        if answer is None:
            raise _no_channel(channel)
        created, events, last, consumers, display = answer
        published = from_micros(last) if last else None
        names = sorted(name.decode() for name in consumers)
        return ChannelStats(channel, from_micros(created), events, published, names, display.decode())

    async def subscribe(
        self,
        channel: str,
        consumer: str,
        policy: Policy,
        start: Start = "latest",
        *,
        revision: int | None = None,
    ) -> Consumer:
        begin, behind = (start, 0) if isinstance(start, str) else await self._log.place(channel, start)
        fields = [value for field in _fields(policy).items() for value in field]
        expected = "" if revision is None else revision
        whole = orjson.dumps(policy.stored())
        options = (begin, behind, policy.dead_letter or "", int(policy.ordered), expected, whole)
        return _consumer(await self._session.run("channels/subscribe", channel, consumer, *options, *fields))

    async def consumers(self, channel: str | None = None) -> list[Consumer]:
        rows = await self._session.run("channels/consumers", named(channel))
        return sorted(map(_consumer, rows), key=lambda each: (each.channel, each.name))

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        stored = await self._session.run("channels/consumer", channel, consumer)
        if not stored:
            raise no_consumer(channel, consumer)
        return _consumer(stored)

    async def consumer_stats(self, channel: str, consumer: str) -> ConsumerStats:
        more = True
        while more:
            [row] = await self._session.run("channels/counts", f"{channel}/{consumer}")
            if row is None:
                raise no_consumer(channel, consumer)
            found, more = _counts(row), row[-1]
        return found.stats

    async def backlogs(self, limit: int) -> list[Backlog]:
        return [
            Backlog(
                each.channel,
                each.consumer,
                {state: each.stats.states.get(state, 0) for state in LIVE},
                each.stats.oldest_ready,
            )
            for each in await self._all_counts()
        ]

    async def job_times(self) -> list[JobTimes]:
        return [
            JobTimes(each.channel, each.consumer, each.ready, each.dead) for each in await self._all_counts()
        ]

    async def _all_counts(self) -> list[_Counts]:
        """The counts of every consumer, by scripts of a page each: the server does nothing else meanwhile."""
        refs = [ref for ref, *_ in await self._session.run("deadletters/consumers")]
        pages = [refs[start : start + _PAGE] for start in range(0, len(refs), _PAGE)]
        answers = await asyncio.gather(*(self._session.run("channels/counts", *page) for page in pages))
        found = [
            _counts(row) for rows in answers for row in rows if row is not None
        ]  # else removed meanwhile
        return sorted(found, key=lambda each: (each.channel, each.consumer))

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        if not await self._session.run("channels/set_paused", channel, consumer, int(paused)):
            raise no_consumer(channel, consumer)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        check_stored("the name", display)
        owner = (channel, display) if consumer is None else (channel, display, consumer)
        if not await self._session.run("channels/set_display", *owner):
            raise _no_channel(channel) if consumer is None else no_consumer(channel, consumer)

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        retired = await self._session.run("channels/retire", channel, consumer)
        if retired is None:
            raise no_consumer(channel, consumer)
        failpoints.hit("remove.after_mark")
        ref, jobs = retired
        step, dead, history, done = limit + jobs, 0, 0, 0
        for _ in range(_REMOVAL_SCRIPTS):
            left = max(step, 1) - jobs - dead - history
            if done or left < 1:
                break
            some = await self._session.run("channels/remove_consumer", ref, min(left, _REMOVAL_ROWS))
            jobs, dead, history, done = jobs + some[0], dead + some[1], history + some[2], some[3]
        failpoints.hit("remove.after_step")
        return Removal(jobs, dead, history, bool(done))


async def catch_up(session: Session, channel: str) -> None:
    """Note what other clients have appended, so that it is found."""
    while await session.run("log/catch_up", channel):
        pass


def no_consumer(channel: str, consumer: str) -> NotFound:
    """Return the error for a consumer that does not exist."""
    return NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")


def _no_channel(channel: str) -> NotFound:
    return NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")


class _Counts(NamedTuple):
    """What a script counts for one consumer."""

    channel: str
    consumer: str
    stats: ConsumerStats
    ready: tuple[datetime, datetime] | None
    dead: tuple[datetime, datetime] | None


def _counts(row: Sequence[Any]) -> _Counts:
    channel, consumer, flat, *scores, _ = row
    oldest, newest, due, first, last = (from_micros(int(float(time))) if time else None for time in scores)
    counts = {name: int(count) for name, count in pairs(flat).items()}
    states = {_STATES[name]: count for name, count in counts.items() if name in _STATES}
    states[State.READY] = states.get(State.READY, 0) + counts.get(_WAITING, 0)
    stats = ConsumerStats({state: count for state, count in states.items() if count}, oldest, due)
    return _Counts(channel.decode(), consumer.decode(), stats, _span(oldest, newest), _span(first, last))


def _span(oldest: datetime | None, newest: datetime | None) -> tuple[datetime, datetime] | None:
    return None if oldest is None or newest is None else (oldest, newest)


def _fields(policy: Policy) -> dict[str, Argument]:
    """The parts of a policy that scripts need."""
    return {
        "lease": to_micros(policy.lease),
        "expires_after": "" if policy.expires_after is None else to_micros(policy.expires_after),
        "discard": int(policy.on_dead == "discard"),
        "dead_letter": policy.dead_letter or "",
        "max_depth": "" if policy.max_depth is None else policy.max_depth,
        "max_attempts": policy.max_attempts,
        "max_abandonments": policy.max_abandonments,
        "max_runs": "" if policy.max_runs is None else policy.max_runs,
    }


def _consumer(stored: list[bytes]) -> Consumer:
    fields = pairs(stored)
    return Consumer(
        fields["channel"].decode(),
        fields["name"].decode(),
        Policy.from_json(orjson.loads(fields["policy"])),
        fields.get("paused") == b"1",
        from_micros(fields["created"]),
        fields.get("display", b"").decode(),
        int(fields.get("revision", 1)),
        fields["channel_display"].decode(),
    )
