"""Channels and their worker consumers."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import orjson

from holdfast import failpoints
from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import from_micros, named, pairs, to_micros
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.contracts import Backlog, ChannelStats, Consumer, ConsumerStats, JobTimes, Start
from holdfast.model.deadletters import Removal
from holdfast.model.errors import NotFound
from holdfast.model.names import check_stored
from holdfast.model.policy import Policy
from holdfast.model.states import LIVE, State

_STATES = {state.value: state for state in State}
# A removal: rows in one script (the server does nothing else meanwhile), keys that one script looks at, and
# scripts in one step.
_REMOVAL_ROWS, _REMOVAL_KEYS, _REMOVAL_SCRIPTS = 250, 1_000, 50


class Channels:
    """Counts come from counters that move with every transition."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        begin = start if isinstance(start, str) else str(to_micros(start))
        fields = [value for field in _fields(policy).items() for value in field]
        expected = "" if revision is None else revision
        whole = orjson.dumps(policy.stored())
        options = (begin, policy.dead_letter or "", int(policy.ordered), expected, whole)
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
        await catch_up(self._session, channel)
        answer = await self._session.run("channels/consumer_stats", channel, consumer)
        if answer is None:
            raise no_consumer(channel, consumer)
        counts, oldest, due = answer
        states = {_STATES[name]: int(n) for name, n in pairs(counts).items() if name in _STATES}
        return ConsumerStats(
            {state: count for state, count in states.items() if count},
            from_micros(oldest) if oldest else None,
            from_micros(int(float(due))) if due else None,
        )

    async def backlogs(self, limit: int) -> list[Backlog]:
        found = []
        for each in await self.consumers():
            with suppress(NotFound):  # removed meanwhile
                stats = await self.consumer_stats(each.channel, each.name)
                live = {state: stats.states.get(state, 0) for state in LIVE}
                found.append(Backlog(each.channel, each.name, live, stats.oldest_ready))
        return found

    async def job_times(self) -> list[JobTimes]:
        found = []
        for each in await self.consumers():
            answer = await self._session.run("channels/job_times", each.channel, each.name)
            if answer is not None:  # else it was removed meanwhile
                found.append(JobTimes(each.channel, each.name, _span(*answer[:2]), _span(*answer[2:])))
        return found

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        if not await self._session.run("channels/set_paused", channel, consumer, int(paused)):
            raise no_consumer(channel, consumer)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        check_stored("the name", display)
        owner = (channel, display) if consumer is None else (channel, display, consumer)
        if not await self._session.run("channels/set_display", *owner):
            raise _no_channel(channel) if consumer is None else no_consumer(channel, consumer)

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        """Where the scan for its history finds little of it for long, a step removes fewer than `limit`."""
        ref = await self._session.run("channels/retire", channel, consumer)
        if ref is None:
            raise no_consumer(channel, consumer)
        failpoints.hit("remove.after_mark")
        jobs = dead = history = done = 0
        for _ in range(_REMOVAL_SCRIPTS):
            left = max(limit, 1) - jobs - dead - history
            if done or not left:
                break
            options = (ref, min(left, _REMOVAL_ROWS), _REMOVAL_KEYS)
            some = await self._session.run("channels/remove_consumer", *options)
            jobs, dead, history, done = jobs + some[0], dead + some[1], history + some[2], some[3]
        failpoints.hit("remove.after_step")
        return Removal(jobs, dead, history, bool(done))


async def catch_up(session: Session, channel: str) -> None:
    """Turn what other clients have appended into jobs, so that it is counted and found."""
    while await session.run("channels/catch_up", channel):
        pass


def no_consumer(channel: str, consumer: str) -> NotFound:
    """Return the error for a consumer that does not exist."""
    return NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")


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
