"""The registry: channels, consumers, epochs and the clock's offset, as one value that is replaced whole.

Every change names the revision that it replaces, so that two subscribes cannot close a cycle together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import orjson

from holdfast.backends.nats.times import from_micros
from holdfast.contracts import Consumer
from holdfast.model.errors import HoldfastError, InvalidPolicy, NotFound
from holdfast.model.policy import Policy
from holdfast.model.position import format_position

SCHEMA = 1
_FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)
_OFFSETS = 100  # older ones only told when events were published that have long become jobs


@dataclass(frozen=True)
class Member:
    """A worker consumer."""

    ref: str
    channel: str
    name: str
    stored: dict[str, Any]
    paused: bool
    created: int

    @cached_property
    def policy(self) -> Policy:
        return Policy.from_json(self.stored)

    def shown(self, backfilling: bool) -> Consumer:
        created = from_micros(self.created)
        return Consumer(self.channel, self.name, self.policy, self.paused, created, backfilling)


@dataclass(frozen=True)
class Registry:
    """`epochs` and `offsets` are pairs: from this sequence on, this epoch, this offset in microseconds.

    `full` are the channels that take no events for now.
    """

    identity: str = ""
    channels: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, Member] = field(default_factory=dict)
    epochs: tuple[tuple[int, int], ...] = ()
    offsets: tuple[tuple[int, int], ...] = ((0, 0),)
    full: frozenset[str] = frozenset()
    revision: int = 0

    def encode(self) -> bytes:
        members = [
            [each.ref, each.channel, each.name, each.stored, each.paused, each.created]
            for each in self.members.values()
        ]
        known = {"identity": self.identity, "channels": dict(self.channels), "members": members}
        places = {"epochs": self.epochs, "offsets": self.offsets, "full": sorted(self.full)}
        return orjson.dumps({"schema": SCHEMA, **known, **places})

    @cached_property
    def by_name(self) -> dict[tuple[str, str], Member]:
        return {(each.channel, each.name): each for each in self.members.values()}

    @cached_property
    def by_channel(self) -> dict[str, list[Member]]:
        found: dict[str, list[Member]] = {}
        for each in sorted(self.members.values(), key=lambda member: member.name):
            found.setdefault(each.channel, []).append(each)
        return found

    def member(self, channel: str, consumer: str) -> Member:
        """One consumer, or `NotFound`."""
        found = self.by_name.get((channel, consumer))
        if found is None:
            raise NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")
        return found

    # time and place

    @property
    def offset(self) -> int:
        return self.offsets[-1][1]

    def offset_at(self, seq: int) -> int:
        """The clock's offset when the message of that sequence was stored."""
        return self.offsets[max(bisect_right(self.offsets, (seq, 1 << 62)) - 1, 0)][1]

    def position(self, seq: int) -> str:
        """Where a message stands in the log."""
        life = bisect_right(self.epochs, (seq, 1 << 62)) - 1
        return format_position(self.epochs[life][1] if life >= 0 else 0, seq)

    def seek(self, epoch: int, seq: int) -> int | None:
        """The sequence after which to read on from a position; None when it is beyond everything.

        What the store has lost of an earlier epoch must not hide what it has written since.
        """
        if self.epochs and epoch > self.epochs[-1][1]:
            return None
        return min([seq, *(start - 1 for start, number in self.epochs if number > epoch)])

    # changes

    def with_identity(self, identity: str, last: int, now: int) -> Registry:
        """The store as this server has it; another server than the one known begins a new epoch.

        An empty one begins with the number of the day, so that a replacement goes on above the one before.
        """
        day = (from_micros(now) - _FIRST_DAY).days
        number = max([day, 1, *(number + 1 for _, number in self.epochs)])
        return replace(self, identity=identity, epochs=(*self.epochs, (last + 1, number)))

    def with_offset(self, by: int, last: int) -> Registry:
        return replace(self, offsets=(*self.offsets, (last + 1, self.offset + by))[-_OFFSETS:])

    def with_channel(self, channel: str, now: int) -> Registry:
        return self if channel in self.channels else replace(self, channels={**self.channels, channel: now})

    def with_full(self, channel: str, full: bool) -> Registry:
        changed = self.full | {channel} if full else self.full - {channel}
        return self if changed == self.full else replace(self, full=changed)

    def with_member(self, member: Member) -> Registry:
        return replace(self, members={**self.members, member.ref: member})

    def check_policy(self, channel: str, name: str, policy: Policy) -> None:
        """Refuse a dead-letter channel that is missing or leads back, and a change of order."""
        target = policy.dead_letter
        if target is not None:
            if target != channel and target not in self.channels:
                raise InvalidPolicy(f"dead-letter channel {target!r} does not exist; create it first")
            if channel in self._downstream(target):
                raise InvalidPolicy(
                    f"dead-letter channel {target!r} leads back to {channel!r}; choose one outside the cycle"
                )
        old = self.by_name.get((channel, name))
        if old is not None and old.policy.ordered != policy.ordered:
            raise InvalidPolicy(
                f"consumer {name!r} of channel {channel!r} was created with ordered={old.policy.ordered}; "
                "create another consumer"
            )

    def _downstream(self, channel: str) -> set[str]:
        seen, todo = set[str](), [channel]
        while todo:
            each = todo.pop()
            if each not in seen:
                seen.add(each)
                todo += [m.policy.dead_letter for m in self.by_channel.get(each, ()) if m.policy.dead_letter]
        return seen


def decode(data: bytes, revision: int) -> Registry:
    """The registry as it was stored."""
    stored: dict[str, Any] = orjson.loads(data)
    if stored["schema"] > SCHEMA:
        raise HoldfastError(
            f"the store has schema {stored['schema']}, this version knows {SCHEMA}; upgrade holdfast"
        )
    members = [Member(*fields) for fields in stored["members"]]
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
        revision,
    )
