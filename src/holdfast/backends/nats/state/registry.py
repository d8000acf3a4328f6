"""The registry: channels, consumers, epochs and the clock's offset, as one value that is replaced whole.

Every change names the revision that it replaces, so that two subscribes cannot close a cycle together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import orjson

from holdfast.backends.nats.wire.codec import from_micros
from holdfast.contracts import Consumer
from holdfast.model.errors import HoldfastError, NotFound
from holdfast.model.policy import Policy
from holdfast.model.position import format_position

SCHEMA = 3
_FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)
_OFFSETS = 100  # older ones only tell when events were published


@dataclass(frozen=True)
class Member:
    """A worker consumer."""

    ref: str
    channel: str
    name: str
    stored: dict[str, Any]
    paused: bool
    created: int
    display: str = ""
    revision: int = 1

    @cached_property
    def policy(self) -> Policy:
        return Policy.from_json(self.stored)

    def stored_fields(self) -> list[Any]:
        return [getattr(self, each.name) for each in dataclass_fields(self)]


@dataclass(frozen=True)
class Registry:
    """`epochs` and `offsets` are pairs: from this sequence on, this epoch, this offset in microseconds.

    `full` are the channels that take no events for now, `displays` their names for people, `removing` the
    consumers that are being removed; numbers up to `numbered` are not given again. New tokens are above
    `tokens`: a server that came back may have lost the newest that it gave, and goes on at the time in
    milliseconds, and so does a consumer after one of its name.
    """

    identity: str = ""
    channels: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, Member] = field(default_factory=dict)
    epochs: tuple[tuple[int, int], ...] = ()
    offsets: tuple[tuple[int, int], ...] = ((0, 0),)
    full: frozenset[str] = frozenset()
    displays: Mapping[str, str] = field(default_factory=dict)
    removing: Mapping[str, Member] = field(default_factory=dict)
    numbered: int = 0
    tokens: int = 0
    revision: int = 0

    def encode(self) -> bytes:
        members, removing = (
            [each.stored_fields() for each in group.values()] for group in (self.members, self.removing)
        )
        known = {"identity": self.identity, "channels": dict(self.channels), "members": members}
        places = {"epochs": self.epochs, "offsets": self.offsets, "full": sorted(self.full)}
        since = {"displays": dict(self.displays), "leaving": removing, "numbered": self.numbered}
        newest = {"tokens": self.tokens}
        return orjson.dumps({"schema": SCHEMA, **known, **places, **since, **newest})

    @cached_property
    def by_name(self) -> dict[tuple[str, str], Member]:
        return {(each.channel, each.name): each for each in self.members.values()}

    @cached_property
    def by_channel(self) -> dict[str, list[Member]]:
        found: dict[str, list[Member]] = {}
        for each in sorted(self.members.values(), key=lambda member: member.name):
            found.setdefault(each.channel, []).append(each)
        return found

    @cached_property
    def bounded(self) -> dict[str, list[Member]]:
        """The consumers that are full at some number of jobs, by channel."""
        found: dict[str, list[Member]] = {}
        for each in self.members.values():
            if each.policy.max_depth is not None:
                found.setdefault(each.channel, []).append(each)
        return found

    def member(self, channel: str, consumer: str) -> Member:
        """Return one consumer. Raises `NotFound`."""
        found = self.by_name.get((channel, consumer))
        if found is None:
            raise NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")
        return found

    def chosen(self, channel: str | None, consumer: str | None) -> list[Member]:
        """Return consumers by channel and name, of one channel or of all, of one name or of all."""
        found = self.members.values()
        chosen = [m for m in found if channel in (None, m.channel) and consumer in (None, m.name)]
        return sorted(chosen, key=lambda member: (member.channel, member.name))

    def shown(self, member: Member) -> Consumer:
        """Return a consumer as the contract has it."""
        return Consumer(
            member.channel,
            member.name,
            member.policy,
            member.paused,
            from_micros(member.created),
            display=member.display,
            revision=member.revision,
            channel_display=self.displays.get(member.channel, ""),
        )

    def check_channel(self, channel: str) -> None:
        if channel not in self.channels:
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")

    def being_removed(self, channel: str, consumer: str) -> Member | None:
        """Return a consumer of that name whose removal has begun."""
        found = (each for each in self.removing.values() if (each.channel, each.name) == (channel, consumer))
        return next(found, None)

    # time and place

    @property
    def offset(self) -> int:
        return self.offsets[-1][1]

    def offset_at(self, seq: int) -> int:
        """Return the clock's offset when the message of that sequence was stored."""
        return self.offsets[max(bisect_right(self.offsets, (seq, 1 << 62)) - 1, 0)][1]

    def position(self, seq: int) -> str:
        """Return where a message stands in the log."""
        life = bisect_right(self.epochs, (seq, 1 << 62)) - 1
        return format_position(self.epochs[life][1] if life >= 0 else 0, seq)

    def seek(self, epoch: int, seq: int) -> int | None:
        """Return the sequence after which to read on from a position; None when it is beyond everything.

        What the store has lost of an earlier epoch must not hide what it has written since.
        """
        if self.epochs and epoch > self.epochs[-1][1]:
            return None
        return min([seq, *(start - 1 for start, number in self.epochs if number > epoch)])

    # changes

    def with_identity(self, identity: str, last: int, now: int) -> Registry:
        """Begin a new epoch: the server is another one than the one known.

        An empty one begins with the number of the day, so that a replacement goes on above the one before.
        """
        day = (from_micros(now) - _FIRST_DAY).days
        number = max([day, 1, *(number + 1 for _, number in self.epochs)])
        tokens = max(self.tokens, now // 1000) if self.epochs else 0
        return replace(self, identity=identity, epochs=(*self.epochs, (last + 1, number)), tokens=tokens)

    def with_offset(self, by: int, last: int) -> Registry:
        return replace(self, offsets=(*self.offsets, (last + 1, self.offset + by))[-_OFFSETS:])

    def with_channel(self, channel: str, now: int) -> Registry:
        return self if channel in self.channels else replace(self, channels={**self.channels, channel: now})

    def with_full(self, channel: str, full: bool) -> Registry:
        changed = self.full | {channel} if full else self.full - {channel}
        return self if changed == self.full else replace(self, full=changed)

    def with_display(self, channel: str, display: str) -> Registry:
        same = self.displays.get(channel, "") == display
        return self if same else replace(self, displays={**self.displays, channel: display})

    @property
    def next_ref(self) -> str:
        """A number that no consumer ever had."""
        return str(max(self.numbered, *map(int, self.members), *map(int, self.removing), 0) + 1)

    def with_member(self, member: Member) -> Registry:
        """Add or replace a consumer, under a revision that none ever had."""
        member = replace(member, revision=max(self.revision, self.tokens) + 1)
        return replace(self, members={**self.members, member.ref: member})

    def without(self, member: Member, now: int) -> Registry:
        """Begin a consumer's removal. A worker of it may come back to one of its name: tokens go on above."""
        members = {ref: each for ref, each in self.members.items() if ref != member.ref}
        tokens = max(self.tokens, now // 1000)
        return replace(self, members=members, removing={**self.removing, member.ref: member}, tokens=tokens)

    def after(self, ref: str) -> Registry:
        """End a consumer's removal."""
        if ref not in self.removing:
            return self
        removing = {each: member for each, member in self.removing.items() if each != ref}
        return replace(self, removing=removing, numbered=max(self.numbered, int(ref)))


def decode(data: bytes, revision: int) -> Registry:
    """Return the registry as it was stored."""
    stored: dict[str, Any] = orjson.loads(data)
    if stored["schema"] != SCHEMA:
        advice = "upgrade holdfast" if stored["schema"] > SCHEMA else "empty it, or use an older version"
        raise HoldfastError(f"the store has schema {stored['schema']}, this version knows {SCHEMA}; {advice}")
    members, removing = ([Member(*each) for each in stored.get(name, ())] for name in ("members", "leaving"))
    epochs, offsets = (
        tuple((start, number) for start, number in stored[name]) for name in ("epochs", "offsets")
    )
    return Registry(
        stored["identity"],
        stored["channels"],
        {each.ref: each for each in members},
        epochs,
        offsets,
        frozenset(stored.get("full", ())),
        stored.get("displays", {}),
        {each.ref: each for each in removing},
        stored.get("numbered", 0),
        stored.get("tokens", 0),
        revision,
    )
