"""An operation: what somebody asked to be done with dead letters, how far it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self, get_args

from holdfast.deadletters.items import Filter
from holdfast.model.duration import format_duration
from holdfast.model.scopes import ADMIN, Right, Scope, Verb

Act = Literal["requeue", "redrive", "patch", "purge", "delete", "remove_consumer"]
State = Literal["waiting", "running", "done", "cancelled", "stopped", "failed"]
ACTS: tuple[Act, ...] = get_args(Act)
GENTLE = 10_000.0
"""Purged per second where nobody says otherwise: workers beside it hardly notice."""
ACTIVE: frozenset[State] = frozenset({"waiting", "running"})


@dataclass(frozen=True, slots=True)
class Canary:
    """Try the first `size`, wait until they have ended, go on only above a share of successes."""

    size: int
    share: float = 0.9
    patience: timedelta = timedelta(minutes=10)
    """How long they may take; what has not ended by then counts as no success."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an operation goes about it."""

    rate: float | None = None
    """At most so many per second; None: as fast as the store allows, and 10,000 for a purge."""
    canary: Canary | None = None
    only_exhausted: bool = False
    """Purge and delete only what used up all its consumer's attempts."""
    patch: tuple[dict[str, Any], ...] = ()
    """JSON Patch (RFC 6902) for the data of each event."""
    digest: str | None = None
    """Patch one item only while its data has the digest that the shown change was made from."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: a kind, and either a filter or items by their public ids.

    `remove_consumer` takes a filter of channel and consumer. An empty filter needs `all`. A filter that names
    no kinds means jobs: a message of a dead-letter channel is most often the copy of a job that is dead too.
    """

    kind: Act
    filter: Filter | None = None
    items: tuple[str, ...] = ()
    options: Options = Options()
    all: bool = False

    @property
    def rate(self) -> float | None:
        """At most so many per second."""
        return self.options.rate or (GENTLE if self.kind == "purge" else None)

    @property
    def target(self) -> str:
        """What it is about, in a few words, without anything that a payload holds."""
        if self.items:
            return self.items[0] if len(self.items) == 1 else f"{len(self.items)} items"
        where = (self.filter or Filter()).where
        return "/".join(each for each in (where.channel, where.consumer, where.fingerprint) if each) or "all"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    looked_at: int = 0
    done: int = 0
    skipped: int = 0
    """Those that were not dead any more, not exhausted, or could not be changed; `problems` says why."""
    expected: int | None = None
    """How many there were when it was asked for."""
    exact: bool = True
    """Whether `expected` is exact; otherwise there were at least so many."""

    def plus(self, done: int, skipped: int) -> Self:
        """With so many more."""
        looked_at = self.looked_at + done + skipped
        return replace(self, looked_at=looked_at, done=self.done + done, skipped=self.skipped + skipped)


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands, for whoever goes on with it."""

    token: int = 0
    """The fencing token of whoever runs it."""
    asked: tuple[datetime, ...] = ()
    """When it was asked for, by the clock of each partition: what died later is not meant."""
    source: str = ""
    after: str | None = None
    """What comes next begins after this place of this source."""
    pending: tuple[str, ...] = ()
    """The items that are being worked on."""
    trying: tuple[str, ...] = ()
    """The items of the canary."""
    tried: datetime | None = None
    """Since when all of the canary are on their way."""
    cleared: bool = False
    """Whether the canary is over, and the rest may go."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A durable record of something that was asked for."""

    id: str
    request: Request
    actor: str
    created_at: datetime
    state: State = "waiting"
    progress: Progress = Progress()
    outcome: str = ""
    """How it ended, in words."""
    problems: tuple[str, ...] = ()
    """The first few of what went wrong."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    rights: tuple[tuple[Scope, ...], ...] = ((ADMIN,),)
    """What each of those may do who asked for it or resumed it: it does what all of them may."""
    stand: Stand = field(default_factory=Stand, compare=False)
    revision: int = 0

    @property
    def kind(self) -> Act:
        """What is done."""
        return self.request.kind

    def asked(self, partition: int) -> datetime:
        """When it was asked for, by the clock of a partition."""
        times = self.stand.asked
        return times[partition] if partition < len(times) else self.created_at

    def may(self, verb: Verb, channel: str | None, consumer: str | None = None) -> bool:
        """Whether everybody who is behind it may do that there."""
        return Right(verb, self.rights).holds(channel, consumer)

    @property
    def active(self) -> bool:
        """Whether somebody works on it, or will."""
        return self.state in ACTIVE

    def to_json(self) -> dict[str, Any]:
        """What people and programs see of it."""
        request, progress = self.request, self.progress
        return {
            "id": self.id,
            "kind": request.kind,
            "state": self.state,
            "actor": self.actor,
            "filter": None if request.filter is None else request.filter.to_json(),
            "items": list(request.items),
            "options": options_to_json(request.options),
            "progress": {name: getattr(progress, name) for name in Progress.__slots__},
            "outcome": self.outcome,
            "problems": list(self.problems),
            "created_at": _time(self.created_at),
            "started_at": _time(self.started_at),
            "ended_at": _time(self.ended_at),
        }


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def options_to_json(options: Options) -> dict[str, Any]:
    """Only what was asked for."""
    canary = options.canary
    shown: dict[str, Any] = {
        "rate": options.rate,
        "canary": canary
        and {"size": canary.size, "share": canary.share, "patience": format_duration(canary.patience)},
        "only_exhausted": options.only_exhausted,
        "patch": list(options.patch),
        "digest": options.digest,
    }
    return {name: value for name, value in shown.items() if value}
