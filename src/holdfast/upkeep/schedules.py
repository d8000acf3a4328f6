"""Schedules: what one publishes and when, how it is stored, and what is to be done about it at a time.

A schedule is the state record `{namespace}.schedules.of.CHANNEL/NAME`, due at its next tick. A tick's event
has an id made of the schedule and the tick, so that whoever publishes it again changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple, get_args

import orjson

from holdfast.model.duration import format_duration, parse_duration
from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.event import DEFAULT_TYPE, Event, check_event, encode_data
from holdfast.model.names import check_name
from holdfast.model.upkeep import StateRecord
from holdfast.upkeep.timing import Timing

Missed = Literal["skip", "once", "all"]
GRACE = timedelta(minutes=1)
"""A tick that is published later than this was missed."""
LONGEST_RETRY = timedelta(minutes=1)
"""The longest pause after a failed try to publish."""
MOST_MISSED = 10_000
MAX_DATA = 65_536
MAX_PRIORITY = 100
COUNTED = 1_000
"""How far skipped ticks are counted."""
AT_ONCE = 100
"""Ticks of one schedule that one step publishes."""
RESERVED = "holdfast-"
_LONGEST_ERROR = 500
NEVER = datetime(2200, 1, 1, tzinfo=UTC)
"""When a paused schedule is due: it is listed after all others."""
_VERSION = "1"
_PLAIN = (
    "missed",
    "max_missed",
    "incarnation",
    "next",
    "created_at",
    "paused",
    "last",
    "fired",
    "skipped",
    "failures",
    "error",
    "error_at",
    "retry_at",
)
"""The fields of a record that are those of `Schedule`."""


def prefix(namespace: str, channel: str | None = None) -> str:
    """What the keys of all schedules, or of a channel's, begin with."""
    return f"{namespace}.schedules.of." + ("" if channel is None else f"{channel}/")


def key(namespace: str, channel: str, name: str) -> str:
    """The key of a schedule's record."""
    return prefix(namespace, channel) + name


@dataclass(frozen=True, slots=True)
class Content:
    """What each tick publishes."""

    data: bytes = b"null"
    type: str = DEFAULT_TYPE
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0

    @classmethod
    def of(
        cls,
        data: Any = None,
        type: str = DEFAULT_TYPE,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Content:
        """Return a content. Raises `InvalidInput` for what no event can carry."""
        encoded = encode_data(data)
        if len(encoded) > MAX_DATA:
            raise TooLarge(
                f"a schedule with {len(encoded)} bytes of data; the limit is {MAX_DATA}: store them "
                "elsewhere, and publish where they are"
            )
        check_event(Event(encoded, "id", type=type, key=key, headers=headers))
        for name in headers or {}:
            if name.lower().startswith(RESERVED):
                raise InvalidInput(f"header {name!r}: only Holdfast writes {RESERVED}*; rename it")
        whole = isinstance(priority, int) and not isinstance(priority, bool)
        if not whole or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidInput(f"priority {priority!r} is outside -{MAX_PRIORITY} to {MAX_PRIORITY}")
        return cls(encoded, type, key, dict(headers or {}), priority)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is stored."""

    name: str
    channel: str
    timing: Timing
    content: Content
    missed: Missed
    max_missed: int
    incarnation: str
    """Random, in the id of every event: one that is removed and made anew has ticks of its own."""
    next: datetime | None
    """The first tick that is not done; None: there are no more."""
    created_at: datetime
    paused: bool = False
    last: datetime | None = None
    """The last tick that was published."""
    fired: int = 0
    skipped: int = 0
    """Ticks that were missed and not published."""
    failures: int = 0
    """Tries to publish since the last one that succeeded."""
    error: str = ""
    error_at: datetime | None = None
    retry_at: datetime | None = None
    """After a failure: when the next try is due."""
    revision: int = 0

    @property
    def due(self) -> datetime:
        """When a step has to look at it."""
        if self.paused or self.next is None:
            return NEVER
        return self.retry_at or self.due_of(self.next)

    def due_of(self, tick: datetime) -> datetime:
        """When a tick is to be published."""
        return self.timing.due(f"{self.channel}/{self.name}", tick)

    @property
    def source(self) -> str:
        """The source of its events."""
        return f"holdfast:schedule:{self.name}"

    @property
    def when(self) -> str:
        """When it ticks, in short."""
        timing = self.timing
        text = f"every {format_duration(timing.every)}" if timing.every else f"{timing.cron} {timing.tz}"
        return f"{text} + {format_duration(timing.jitter)}" if timing.jitter else text

    def to_json(self) -> dict[str, Any]:
        """Return all of it but the data, as people and programs see it; `next` and `due` are null where no
        tick will come."""
        timing, content, active = self.timing, self.content, self.next is not None and not self.paused
        return {
            "name": self.name,
            "channel": self.channel,
            "cron": timing.cron,
            "every": None if timing.every is None else format_duration(timing.every),
            "tz": timing.tz if timing.cron else None,
            "jitter": format_duration(timing.jitter),
            "missed": self.missed,
            "max_missed": self.max_missed,
            "type": content.type,
            "key": content.key,
            "headers": dict(content.headers),
            "priority": content.priority,
            "paused": self.paused,
            "created_at": self.created_at,
            "last": self.last,
            "next": self.next if active else None,
            "due": self.due if active else None,
            "fired": self.fired,
            "skipped": self.skipped,
            "failures": self.failures,
            "error": self.error,
            "error_at": self.error_at,
        }

    def upcoming(self, now: datetime) -> list[datetime]:
        """When the next ticks are due, as far as it is not paused."""
        since = now if self.next is None else min(now, self.next - timedelta(microseconds=1))
        ticks = [] if self.paused or self.next is None else self.timing.upcoming(since)
        return [self.due_of(tick) for tick in ticks]

    def event(self, tick: datetime) -> Event:
        """The event of a tick: the same one, whoever makes it."""
        headers = {"holdfast-schedule": self.name, "holdfast-tick": written(tick)}
        return self._event(f"{self.name}@{written(tick)}.{self.incarnation}", tick, headers)

    def run_event(self, run: str) -> Event:
        """The event of a run that somebody asked for under an id."""
        headers = {"holdfast-schedule": self.name, "holdfast-run": run}
        return self._event(f"{self.name}@run:{run}.{self.incarnation}", None, headers)

    def _event(self, event_id: str, time: datetime | None, headers: dict[str, str]) -> Event:
        content = self.content
        headers = {**content.headers, **headers}
        return Event(content.data, event_id, self.source, content.type, content.key, time, headers)

    def renewed(self, **changes: Any) -> Schedule:
        """Return it with these changes, and without what went wrong before them."""
        return replace(self, failures=0, error="", error_at=None, retry_at=None, **changes)

    def failed(self, error: str, now: datetime, pause: timedelta) -> Schedule:
        """Return it after a failed try to publish, due again after a pause."""
        text = error[:_LONGEST_ERROR].replace("\0", "").encode("utf-8", "replace").decode()
        return replace(self, failures=self.failures + 1, error=text, error_at=now, retry_at=now + pause)

    def same_definition(self, other: Schedule) -> bool:
        """Whether it says the same as another, whatever has become of each; the anchor is no part of it."""
        return _definition(self) == _definition(other)


def _definition(schedule: Schedule) -> tuple[Any, ...]:
    timing = replace(schedule.timing, anchor=NEVER)
    return timing, schedule.content, schedule.missed, schedule.max_missed


def check(name: str, channel: str, missed: str, max_missed: int) -> None:
    """Raise `InvalidInput` for what cannot be part of a schedule."""
    check_name(name, "schedule")
    check_name(channel)
    if missed not in get_args(Missed):
        raise InvalidInput(f"missed {missed!r} is unknown; use one of {', '.join(get_args(Missed))}")
    whole = isinstance(max_missed, int) and not isinstance(max_missed, bool)
    if not whole or not 1 <= max_missed <= MOST_MISSED:
        raise InvalidInput(f"max_missed {max_missed!r} is not a whole number from 1 to {MOST_MISSED}")


def written(time: datetime) -> str:
    """A time as ids and headers have it: `2030-01-31T09:00:00Z`."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


class Plan(NamedTuple):
    """What is to be done about a schedule at a time."""

    ticks: list[datetime]
    """To be published, in order."""
    skipped: int
    """How many were missed and are not published, counted up to `COUNTED`."""
    next: datetime | None
    more: bool
    """Whether there are further ticks to publish at once."""


def plan(schedule: Schedule, now: datetime) -> Plan:
    """Return what is to be done about a schedule that is due.

    A tick is missed once it is late by more than `GRACE`. Of those the policy keeps the latest: none, one or
    `max_missed`. All others are published, whatever the policy.
    """
    first, skipped = schedule.next, 0
    if first is not None and schedule.due_of(first) <= now - GRACE:
        first, skipped = _first_kept(schedule, first, now - GRACE)
    ticks: list[datetime] = []
    for tick in _from(schedule, first):
        due = schedule.due_of(tick) <= now
        if not due or len(ticks) == AT_ONCE:
            return Plan(ticks, skipped, tick, due)
        ticks.append(tick)
    return Plan(ticks, skipped, None, False)


def _first_kept(schedule: Schedule, first: datetime, late: datetime) -> tuple[datetime | None, int]:
    """Return the first tick that the policy publishes, of those that were due by `late` and what follows; and
    how many come before it."""
    keep = {"skip": 0, "once": 1, "all": schedule.max_missed}[schedule.missed]
    latest = schedule.timing.latest(first, late, keep + 2)  # the last one may be in time by its jitter
    missed = [tick for tick in latest if schedule.due_of(tick) <= late] or [first]
    kept = missed[-keep] if 0 < keep <= len(missed) else missed[0] if keep else None
    if kept is None:
        kept = schedule.timing.next(missed[-1])
    skipped = takewhile(lambda tick: tick < (kept or late), islice(_from(schedule, first), COUNTED))
    return kept, sum(1 for _ in skipped)


def _from(schedule: Schedule, first: datetime | None) -> Iterator[datetime]:
    """Yield a tick and all that follow it."""
    if first is not None:
        yield first
        yield from schedule.timing.after(first)


def to_fields(schedule: Schedule) -> dict[str, str]:
    """Return what is stored of a schedule: text, as a client reads it that knows only the server."""
    timing, content = schedule.timing, schedule.content
    text = _text(content.data)
    kept: dict[str, object] = {
        "version": _VERSION,
        "cron": timing.cron,
        "every": None if timing.every is None else format_duration(timing.every),
        "tz": timing.tz,
        "jitter": format_duration(timing.jitter),
        "anchor": timing.anchor,
        "data": text,
        "data_base64": base64.b64encode(content.data).decode() if text is None else None,
        "type": content.type,
        "key": content.key,
        "headers": orjson.dumps(dict(content.headers)).decode(),
        "priority": content.priority,
        **{name: getattr(schedule, name) for name in _PLAIN},
    }
    return {
        name: written(value) if isinstance(value, datetime) else str(value)
        for name, value in kept.items()
        if value is not None
    }


def from_record(namespace: str, record: StateRecord) -> Schedule:
    """Return a stored schedule. Raises `InvalidInput` where another version, or other software, wrote it."""
    channel, _, name = record.key.removeprefix(prefix(namespace)).partition("/")
    try:
        return _read(channel, name, record.fields, record.revision)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"schedule {name!r} of {channel!r} is none that this version knows ({error!r}); remove it, or "
            "upgrade this process"
        ) from None


def _read(channel: str, name: str, stored: Mapping[str, str], revision: int) -> Schedule:
    if stored["version"] != _VERSION:
        raise ValueError(f"version {stored['version']}")
    check(name, channel, stored["missed"], int(stored["max_missed"]))
    every = stored.get("every")
    timing = Timing(
        stored.get("cron"),
        None if every is None else parse_duration(every),
        stored["tz"],
        parse_duration(stored["jitter"]),
        _zoned(stored["anchor"]),
    )
    if (timing.cron is None) == (timing.every is None):
        raise ValueError("neither cron nor every, or both")
    data = stored["data"].encode() if "data" in stored else base64.b64decode(stored["data_base64"])
    headers = orjson.loads(stored["headers"])
    content = Content(data, stored["type"], stored.get("key"), headers, int(stored["priority"]))
    read: dict[str, Any] = {
        each: _time(stored.get(each)) for each in ("next", "last", "error_at", "retry_at")
    }
    read |= {each: int(stored[each]) for each in ("fired", "skipped", "failures")}
    return Schedule(
        name=name,
        channel=channel,
        timing=timing,
        content=content,
        missed=stored["missed"],  # type: ignore[arg-type]  # checked above
        max_missed=int(stored["max_missed"]),
        incarnation=stored["incarnation"],
        created_at=_zoned(stored["created_at"]),
        paused=stored["paused"] == "True",
        error=stored["error"],
        revision=revision,
        **read,
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else _zoned(text)


def _zoned(text: str) -> datetime:
    """A stored time; one without a zone compares with no other."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no zone")
    return time


def _text(data: bytes) -> str | None:
    """Data as text that every store can hold, if it is."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
