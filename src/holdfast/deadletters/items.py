"""Items: what the one list shows of a job, an ingest record or a stream message; their ids; filters.

A job is its store's id on the first partition, and `ID@PARTITION` on the others. An item of the one list is
`job:CHANNEL:CONSUMER:JOB`, `ingest:FAILED_ID` or `stream:CHANNEL:POSITION`, which has `@PARTITION` too. Lists
print these ids, and every command and path takes them back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Self, get_args

from holdfast.deadletters.payloads import readable
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.names import NAME, check_name

Kind = Literal["job", "ingest", "stream"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# What some store gives as a job's id or as a position: nothing else can be one.
LOCAL = r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}"
PUBLIC = rf"{LOCAL}(@[1-9][0-9]{{0,3}})?"
ITEM = rf"(job:{NAME}:{NAME}:{PUBLIC}|ingest:{LOCAL}|stream:{NAME}:{PUBLIC})"
_LOCAL, _PUBLIC = re.compile(LOCAL), re.compile(PUBLIC)

_TIMES = ("since", "until")
_FIRST = datetime(2020, 1, 1, tzinfo=UTC)
"""No dead letter is older than Holdfast."""
_LONGEST = 500
_UNSAFE = re.compile("[\x00\ud800-\udfff]")  # what no store can look for


@dataclass(frozen=True, slots=True)
class ItemId:
    """An item of the one list, taken apart."""

    kind: Kind
    local: str
    """The job's id in its store, the failed event's id, or the message's position."""
    channel: str = ""
    consumer: str = ""
    partition: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "job":
                return f"job:{self.channel}:{self.consumer}:{public(self.local, self.partition)}"
            case "ingest":
                return f"ingest:{self.local}"
            case "stream":
                return f"stream:{self.channel}:{public(self.local, self.partition)}"


def public(local: str, partition: int) -> str:
    """The public form of an id that is a store's own."""
    return f"{local}@{partition}" if partition else local


def parse_public(text: str) -> tuple[str, int]:
    """The inverse of `public`."""
    if not _PUBLIC.fullmatch(text):
        raise InvalidInput(f"{text!r} is no id; write it as a list prints it: ID, or ID@PARTITION")
    local, _, number = text.partition("@")
    return local, int(number or 0)


def job_item(channel: str, consumer: str, job: str) -> ItemId:
    """The item of a job that is given by its public id."""
    local, partition = parse_public(job)
    return ItemId("job", local, check_name(channel), check_name(consumer, "consumer"), partition)


def parse_item(text: str) -> ItemId:
    """An item's id as a list prints it."""
    match text.split(":"):
        case ["job", channel, consumer, job]:
            return job_item(channel, consumer, job)
        case ["ingest", failed] if _LOCAL.fullmatch(failed):
            return ItemId("ingest", failed)
        case ["stream", channel, place]:
            local, partition = parse_public(place)
            return ItemId("stream", local, check_name(channel), partition=partition)
    raise InvalidInput(
        f"{text!r} is no dead letter's id; "
        "write job:CHANNEL:CONSUMER:ID, ingest:ID or stream:CHANNEL:POSITION"
    )


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant: what must hold, and which kinds. Build it with `Filter.of`."""

    where: DeadFilter = field(default_factory=DeadFilter)
    kinds: tuple[Kind, ...] = KINDS

    @classmethod
    def of(cls, *, kinds: tuple[str, ...] | list[str] | None = None, **where: Any) -> Self:
        """A filter from the words of `DeadFilter`; what is None or empty is not asked for.

        Raises `InvalidInput` for a word, a kind or a name that cannot be.
        """
        given = {name: value for name, value in where.items() if value not in (None, "")}
        known = {each.name for each in fields(DeadFilter)}
        if unknown := given.keys() - known:
            raise InvalidInput(f"no filter {', '.join(sorted(unknown))}; use {', '.join(sorted(known))}")
        _check_values(given)
        for name in ("channel", "consumer"):
            if name in given:
                check_name(given[name], name)
        return cls(DeadFilter(**given), _kinds(kinds))

    @property
    def empty(self) -> bool:
        """Whether nothing was asked for."""
        return self.where == DeadFilter()

    def excludes_nothing(self, now: datetime) -> bool:
        """Whether it means everything there is: it is empty, or says only times before which, or after
        which, nothing can have died."""
        since, until = self.where.since, self.where.until
        return (
            replace(
                self.where,
                since=None if since is None or since <= _FIRST else since,
                until=None if until is None or until >= now else until,
            )
            == DeadFilter()
        )

    def before(self, time: datetime) -> Self:
        """The same for what died before a time."""
        until = time if self.where.until is None else min(time, self.where.until)
        return replace(self, where=replace(self.where, until=until))

    def to_json(self) -> dict[str, Any]:
        """What was asked for, in JSON's types."""
        given = {name: value for name, value in asdict(self.where).items() if value is not None}
        for name in _TIMES:
            if name in given:
                given[name] = given[name].isoformat()
        return {"kinds": list(self.kinds), **given}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        times = {name: datetime.fromisoformat(stored[name]) for name in _TIMES if name in stored}
        return cls.of(**{**stored, **times})


def _kinds(given: tuple[str, ...] | list[str] | None) -> tuple[Kind, ...]:
    if given is not None and not isinstance(given, list | tuple):
        raise InvalidInput(f"kinds {given!r} is no list; use some of {', '.join(KINDS)}")
    for each in given or ():
        if each not in KINDS:
            raise InvalidInput(f"no kind {each!r} of dead letters; use {', '.join(KINDS)}")
    return tuple(each for each in KINDS if not given or each in given)


def _check_values(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _TIMES:
            if not isinstance(value, datetime) or value.tzinfo is None:
                raise InvalidInput(f"{name} {value!r} is not a time with a zone; write 2030-01-31T09:00:00Z")
        elif not isinstance(value, str) or len(value) > _LONGEST or _UNSAFE.search(value):
            raise InvalidInput(
                f"{name} {value!r} cannot be looked for; use text of at most {_LONGEST} characters"
            )


@dataclass(frozen=True, slots=True)
class Item:
    """One dead letter in the list, of any kind."""

    id: str
    kind: Kind
    channel: str
    """Where its event was published."""
    consumer: str
    """Who gave it up; empty where nobody says so."""
    event_id: str
    source: str
    reason: str
    error: str
    """The last error."""
    error_kind: str
    """Its class; empty where it is not known."""
    fingerprint: str
    attempts: int
    died_at: datetime
    position: str
    partition: int
    job: str = ""
    """A job's public id."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Everything about one dead letter."""

    item: Item
    event: Event
    """As its consumer gets it."""
    original: bytes | None = None
    """The event's own data, where a patch replaces it."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    more: Mapping[str, Any] = field(default_factory=dict)
    """What only this kind has."""

    def to_json(self, content: Callable[[str, bytes], dict[str, Any]] | None = None) -> dict[str, Any]:
        """The same in JSON's types; `content` shows data under a name, in another way than `readable`."""
        event, content = self.event, content or readable
        shown: dict[str, Any] = {
            **asdict(self.item),
            "type": event.type,
            "key": event.key,
            "time": event.time,
            "headers": dict(event.headers),
            **content("data", event.data),
            "errors": self.errors,
            **self.more,
        }
        return shown if self.original is None else shown | content("original", self.original)


@dataclass(frozen=True, slots=True)
class ItemPage:
    """A page of the one list."""

    items: list[Item]
    after: str | None
    """Where to go on; None: there are no more. A page may be short, or empty, and still go on: a filter
    without an index was searched for long enough."""


class Count(NamedTuple):
    """How many dead letters a filter means."""

    number: int
    exact: bool
    """False: at least so many."""


@dataclass(frozen=True, slots=True)
class ConsumerDead:
    """A consumer's dead letters, all partitions together."""

    channel: str
    channel_name: str
    """The name for people, or the channel's own."""
    consumer: str
    consumer_name: str
    """The name for people, or the consumer's own."""
    dead: int
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Dead letters of a consumer whose last errors differ only in numbers, ids, paths or addresses."""

    channel: str
    consumer: str
    fingerprint: str
    count: int
    pattern: str
    """The error's class and text, with a placeholder for what differs."""
    sample: Item
    """The latest of them."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A count that did not agree with what is there, on one partition."""

    partition: int
    channel: str
    consumer: str
    reason: str
    counted: int
    found: int
