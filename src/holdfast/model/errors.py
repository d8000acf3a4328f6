"""The one error tree.

HoldfastError
├── InvalidInput      what the caller passed cannot be used (also a ValueError)
│   ├── InvalidName       a channel, consumer or pattern name
│   ├── InvalidPolicy     a consumer's policy
│   └── TooLarge          an event, a header or a batch over its limit
├── NotFound          a channel, consumer or job that does not exist
├── IdConflict        the id was published before with other content
├── Outdated          it was changed by somebody else since it was read
├── LeaseLost         the token is stale, or the job is no longer leased
├── LockLost          another holder has the lock since
├── DataLost          a position was trimmed before it was read
├── ObjectConflict    an object store holds that name with other content
├── Damaged           what was stored does not match its checksum, or is gone
├── Incompatible      a schema that would break consumers of its channel
├── Terminal          do not retry (raise it in a handler)
│   └── InvalidData       the event's data does not fit the type that the handler takes
├── Snooze            come back later, at no cost (raise it in a handler)
└── Transient         try again later (raise it in a handler)
    ├── Overloaded        a bounded consumer is full
    └── Unavailable       the store did not answer, or is marked faulty
        └── TooManyConnections  it lets nobody in: it is at a limit of connections
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

Duration = str | int | float | timedelta


class HoldfastError(Exception):
    """The root of every error that Holdfast raises."""


class InvalidInput(HoldfastError, ValueError):
    """What the caller passed cannot be used; the message says what, which value and what to do."""


class InvalidName(InvalidInput):
    """A name that cannot become a key or a path."""


class InvalidPolicy(InvalidInput):
    """A consumer's policy that contradicts itself or points nowhere."""


class TooLarge(InvalidInput):
    """An event, a header or a batch over its limit."""


class NotFound(HoldfastError, LookupError):
    """A channel, a consumer or a job that does not exist."""


class IdConflict(HoldfastError):
    """The same (channel, source, id) was published before with other content."""

    def __init__(self, channel: str, ids: Sequence[str]) -> None:
        self.channel, self.ids = channel, tuple(ids)
        shown = ", ".join(repr(i) for i in self.ids[:5]) + (", …" if len(self.ids) > 5 else "")
        super().__init__(
            f"channel {channel!r} already holds {shown} with other content; "
            "publish a changed event under a new id"
        )


class Outdated(HoldfastError):
    """A change that was meant for an earlier revision: nothing was changed."""


class Incompatible(HoldfastError):
    """A schema that refuses data which the one before it allowed: nothing was changed."""

    def __init__(self, channel: str, reasons: Sequence[str]) -> None:
        self.channel, self.reasons = channel, tuple(reasons)
        shown = "; ".join(self.reasons[:5]) + (
            f"; and {len(self.reasons) - 5} more" * (len(self.reasons) > 5)
        )
        super().__init__(
            f"the schema would break consumers of {channel!r}: {shown}; force it once nobody reads or sends "
            "such events any more"
        )


class LeaseLost(HoldfastError):
    """A newer token was issued, or the job is no longer leased: nothing was changed."""

    def __init__(self, jobs: Sequence[str]) -> None:
        self.jobs = tuple(jobs)
        super().__init__(
            f"the lease on job {', '.join(self.jobs[:5])} was lost to its deadline or to a requeue; "
            "its effects may run again elsewhere"
        )


class LockLost(HoldfastError):
    """The lock ended or was taken by another holder: nothing was changed."""

    def __init__(self, name: str, token: int) -> None:
        self.name, self.token = name, token
        super().__init__(f"the lock {name!r} with token {token} was lost to its deadline; take it again")


class DataLost(HoldfastError):
    """What a reader asks for was trimmed before it was read."""


class ObjectConflict(HoldfastError):
    """An object store holds that name with other content: nothing was written."""


class Damaged(HoldfastError):
    """What was stored does not match its checksum, or is gone: it is not served."""


class Terminal(HoldfastError):
    """Raised by a handler: no retry can help, bury the job now."""


class InvalidData(Terminal):
    """The event's data does not fit the type that the handler takes: no retry can help."""


class Snooze(HoldfastError):
    """Raised by a handler: not now. The job waits for `delay` and its attempt is given back."""

    def __init__(self, delay: Duration) -> None:
        self.delay = delay
        super().__init__(f"snoozed for {delay}")


class Transient(HoldfastError):
    """Raised by a handler, or by Holdfast: the same call may succeed later."""


class Overloaded(Transient):
    """A bounded consumer is full: publish again once it has caught up."""


class Unavailable(Transient):
    """The store did not answer, or its partition is marked faulty."""


class TooManyConnections(Unavailable):
    """The store is at a limit of connections, and this process has none. A worker waits for one."""
