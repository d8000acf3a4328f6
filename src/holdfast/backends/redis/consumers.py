"""Channels and worker consumers."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import orjson

from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import from_micros, named, pairs, to_micros
from holdfast.backends.redis.leases import no_consumer
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.contracts import Backlog, ChannelStats, Consumer, ConsumerStats, JobTimes, Start
from holdfast.model.errors import NotFound
from holdfast.model.job import LIVE, State
from holdfast.model.policy import Policy
from holdfast.model.text import check_stored

_STATES = {state.value: state for state in State}


class Consumers:
    """Creates, changes and describes channels and consumers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def subscribe(
        self, channel: str, consumer: str, policy: Policy, start: Start, revision: int | None
    ) -> Consumer:
        """Create a consumer or change its policy."""
        begin = start if isinstance(start, str) else str(to_micros(start))
        fields = [value for field in _fields(policy).items() for value in field]
        expected = "" if revision is None else revision
        whole = orjson.dumps(policy.stored())
        options = (begin, policy.dead_letter or "", int(policy.ordered), expected, whole)
        stored = await self._session.run("subscribe", channel, consumer, *options, *fields)
        return _consumer(stored)

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        """One consumer, or `NotFound`."""
        stored = await self._session.run("consumer", channel, consumer)
        if not stored:
            raise no_consumer(channel, consumer)
        return _consumer(stored)

    async def consumers(self, channel: str | None) -> list[Consumer]:
        """All consumers of a channel, or of all."""
        found = [_consumer(stored) for stored in await self._session.run("consumers", named(channel))]
        return sorted(found, key=lambda each: (each.channel, each.name))

    async def stats(self, channel: str, consumer: str) -> ConsumerStats:
        """Jobs by state, from counters that move with every transition."""
        await self.catch_up(channel)
        answer = await self._session.run("consumer_stats", channel, consumer)
        if answer is None:
            raise no_consumer(channel, consumer)
        counts, oldest, due = answer
        states = {_STATES[name]: int(n) for name, n in pairs(counts).items() if name in _STATES}
        return ConsumerStats(
            {state: count for state, count in states.items() if count},
            from_micros(oldest) if oldest else None,
            from_micros(int(float(due))) if due else None,
        )

    async def catch_up(self, channel: str) -> None:
        """Turn what other clients have appended into jobs, so that it is counted and found."""
        while await self._session.run("catch_up", channel):
            pass

    async def backlogs(self) -> list[Backlog]:
        """Live jobs of every consumer, from the same counters; one that is removed meanwhile is left out."""
        found = []
        for each in await self.consumers(None):
            with suppress(NotFound):
                stats = await self.stats(each.channel, each.name)
                live = {state: stats.states.get(state, 0) for state in LIVE}
                found.append(Backlog(each.channel, each.name, live, stats.oldest_ready))
        return found

    async def job_times(self) -> list[JobTimes]:
        """The oldest and newest of every consumer; one that is removed meanwhile is left out."""
        found = []
        for each in await self.consumers(None):
            answer = await self._session.run("job_times", each.channel, each.name)
            if answer is not None:
                found.append(JobTimes(each.channel, each.name, _span(*answer[:2]), _span(*answer[2:])))
        return found

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        """Stop or resume handing out jobs."""
        if not await self._session.run("pause", channel, consumer, int(paused)):
            raise no_consumer(channel, consumer)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        """A name for people."""
        check_stored("the name", display)
        owner = (channel, display) if consumer is None else (channel, display, consumer)
        if not await self._session.run("display", *owner):
            raise _no_channel(channel) if consumer is None else no_consumer(channel, consumer)

    async def create_channel(self, channel: str) -> None:
        """Make sure that a channel exists."""
        await self._session.run("create_channel", channel)

    async def channels(self) -> list[str]:
        """All channels by name."""
        return sorted(name.decode() for name in await self._session.call("HKEYS", keys.CHANNELS))

    async def channel_stats(self, channel: str) -> ChannelStats:
        """One channel's log at a glance."""
        answer = await self._session.run("channel_stats", channel)
        if answer is None:
            raise _no_channel(channel)
        created, events, last, consumers, display = answer
        published = from_micros(last) if last else None
        names = sorted(name.decode() for name in consumers)
        return ChannelStats(channel, from_micros(created), events, published, names, display.decode())


def _no_channel(channel: str) -> NotFound:
    return NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")


def _span(oldest: bytes, newest: bytes) -> tuple[datetime, datetime] | None:
    return (from_micros(int(float(oldest))), from_micros(int(float(newest)))) if oldest else None


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
        "target" in fields,
        fields.get("display", b"").decode(),
        int(fields.get("revision", 1)),
        fields["channel_display"].decode(),
    )
