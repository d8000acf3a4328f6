"""Items: what the one list shows of a job, an ingest record or a stream message, and which are meant."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import orjson

from holdfast.deadletters.ids import KINDS, Kind
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.names import check_name

_TIMES = ("since", "until")
_FIRST = datetime(2020, 1, 1, tzinfo=UTC)
"""No dead letter is older than Holdfast."""
_LONGEST = 500
_UNSAFE = re.compile("[\x00\ud800-\udfff]")  # what no store can look for
DIGITS = 19
LONG = re.compile(rb"[0-9]{%d}" % DIGITS)
"""What may be an integer above 64 bits."""
_HUGE = re.compile(rb"[0-9]{4301}")  # Python, for one, takes no longer ones
_DEEPEST = 200  # what every writer of JSON takes
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


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


def readable(name: str, data: bytes) -> dict[str, Any]:
    """Data under a name: as JSON where it is JSON that survives being written again, else in Base64 under the
    name with `_base64`."""
    try:
        value = exact_json(data)
    except ValueError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
    if nests_deep(data):
        return {f"{name}_base64": base64.b64encode(data).decode()}
    return {name: value}


def exact_json(data: bytes) -> Any:
    """The value of a text of JSON, with integers of any size as they are; `ValueError` where it is none."""
    value = orjson.loads(data)
    return exact_integers(data) if LONG.search(data) else value


def exact_integers(data: bytes) -> Any:
    """The value of a text that orjson has taken: it makes a float of an integer above 64 bits."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def is_json(data: bytes) -> bool:
    """Whether it is a text of JSON that other parsers take too."""
    try:
        orjson.loads(data)
        if _HUGE.search(data):
            exact_integers(data)
    except ValueError:
        return False
    return True


def nests_deep(data: bytes) -> bool:
    """Whether a text of JSON nests deeper than every writer takes."""
    if data.count(b"[") + data.count(b"{") <= _DEEPEST:
        return False
    brackets = _TEXT.sub(b"", data).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(_DEEPEST):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost ones
    return bool(brackets)


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
