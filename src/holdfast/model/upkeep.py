"""What upkeep works with: locks, cursors, what trimming did, foreign groups, and state records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Lock:
    """A lease on a name. Its token only ever rises, so that a store can refuse a holder from the past."""

    name: str
    owner: str
    token: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Cursor:
    """A stream consumer as it is stored: its sink is durable up to and including `position`."""

    channel: str
    name: str
    position: str | None
    """None: nothing yet, from the beginning of the log."""
    moved_at: datetime


@dataclass(frozen=True, slots=True)
class Hold:
    """The consumer that keeps a trim from going further, and from where on it still needs the log."""

    consumer: str
    after: str | None
    """The last position that it no longer needs. None: it needs everything, or nobody knows what it needs."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What one step of trimming did."""

    removed: int
    more: bool
    """Whether the limit cut the step short."""
    hold: Hold | None
    """Set where some event was old enough to go and had to stay: the consumer that needs the oldest one."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much a channel's log holds: estimates that are right within a factor of two."""

    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many idempotency keys and ended jobs one step removed."""

    keys: int
    jobs: int
    more: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A foreign consumer group on a channel's log: other software's readers, which we did not make."""

    channel: str
    name: str
    members: int
    """Members that were seen within the time that was asked for."""
    idle: timedelta | None
    """How long ago any member was last seen. None: there is none, or the server does not say."""
    pending: int
    stale: int
    """Pending entries of members that are not among the living."""
    delivered: str | None
    """The last position that was delivered. None: nothing yet."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A small state record under a dotted key, readable by a client that knows only the server."""

    key: str
    fields: Mapping[str, str]
    revision: int
    """Rises with every change; a put that expects another one is refused."""
