"""Timing: at which times a schedule ticks, by a cron expression in a time zone or by an interval.

A tick is a time in UTC. Every process computes the same ones, from what is stored alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.model.duration import format_duration, parse_duration
from holdfast.model.errors import Duration, InvalidInput

SHORTEST = timedelta(seconds=1)
UPCOMING = 10
"""How many ticks are shown before a schedule is saved, and looked at when one is checked."""
_LONGEST_CRON = 256
_BAD_DAY = "Bad day-of-month"
_FIELDS = "write five fields, minute hour day month weekday, such as '0 3 * * *'"
_HORIZON = timedelta(days=50 * 366)
_MINUTE = timedelta(minutes=1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule ticks: by `cron` in the zone `tz`, or every so often, counted from `anchor`."""

    cron: str | None
    every: timedelta | None
    tz: str
    jitter: timedelta
    anchor: datetime
    """The time of the store at which the interval was set."""

    @classmethod
    def of(
        cls,
        now: datetime,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        jitter: Duration = 0,
    ) -> Timing:
        """Return a timing that begins now. Raises `InvalidInput` for one that cannot be used."""
        if (cron is None) == (every is None):
            raise InvalidInput("a schedule has either cron or every; give one of them")
        interval = None if every is None else _interval(every, tz)
        expression = None if cron is None else " ".join(_expression(cron).split())
        spread = parse_duration(jitter, what="jitter")
        timing = cls(expression, interval, tz or "UTC", spread, now.astimezone(UTC).replace(microsecond=0))
        timing.check(now)
        return timing

    def check(self, now: datetime) -> None:
        """Raise `InvalidInput` where it never ticks, or where its jitter would mix up its ticks."""
        found = list(self.upcoming(now))
        if not found:
            raise InvalidInput(f"cron {self.cron!r} never ticks: no such day comes in the next 50 years")
        gaps = [later - earlier for earlier, later in pairwise(found)]
        if self.jitter and gaps and self.jitter >= min(gaps):
            raise InvalidInput(
                f"jitter {format_duration(self.jitter)} is not shorter than the time between two ticks, "
                f"{format_duration(min(gaps))}; use a shorter one"
            )

    def upcoming(self, now: datetime, count: int = UPCOMING) -> list[datetime]:
        """Return the next ticks after a time, without their jitter: those of the next 50 years."""
        end = now + _HORIZON
        return list(takewhile(lambda tick: tick < end, islice(self.after(now), count)))

    def after(self, time: datetime) -> Iterator[datetime]:
        """Yield every tick after a time, in order; ends where 50 years have none."""
        return self._intervals(time) if self.every is not None else self._matches(time)

    def next(self, time: datetime) -> datetime | None:
        """Return the first tick after a time; None where there is none."""
        return next(self.after(time), None)

    def due(self, name: str, tick: datetime) -> datetime:
        """Return when a tick of a schedule is due: with jitter somewhat later, by a hash of name and tick."""
        if not self.jitter:
            return tick
        digest = hashlib.sha256(f"{name}\0{tick.isoformat()}".encode()).digest()
        return tick + self.jitter * (int.from_bytes(digest[:4], "big") / 2**32)

    def latest(self, since: datetime, until: datetime, count: int) -> list[datetime]:
        """Return the last `count` ticks from `since` to `until`, in order.

        It looks back further and further: its cost grows with `count`, not with the time between.
        """
        span = count * (self.every or _MINUTE)
        while True:
            begin = max(since, until - span) - _MICROSECOND
            found = []
            for tick in self.after(begin):
                if tick > until:
                    break
                found.append(tick)
            if len(found) >= count or begin < since:
                return found[-count:] if count else []
            span *= 4

    def _intervals(self, time: datetime) -> Iterator[datetime]:
        every = self.every or SHORTEST
        place = max((time - self.anchor) // every, 0)
        while True:
            place += 1
            yield self.anchor + place * every

    def _matches(self, time: datetime) -> Iterator[datetime]:
        """In local time, where an hour may be missing or come twice: no tick is repeated or goes back."""
        last = time.astimezone(UTC)
        found = _parse(self.cron or "", last.astimezone(zone(self.tz)))
        while (local := next(found, None)) is not None:
            tick = local.astimezone(UTC)
            if tick > last:
                last = tick
                yield tick


def zone(name: str) -> tzinfo:
    """Return a time zone of the IANA database. Raises `InvalidInput` where it has none of that name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a folder of the database, or a path
        raise InvalidInput(
            f"tz {name[:64]!r} is not a time zone that this machine knows; write one such as 'Europe/Berlin'"
        ) from None


def _interval(every: Duration, tz: str | None) -> timedelta:
    interval = parse_duration(every, what="every")
    if interval < SHORTEST:
        raise InvalidInput(f"every {format_duration(interval)} is too often; use at least 1s")
    if tz is not None:
        raise InvalidInput(f"tz {tz!r} is about cron; leave it out with every, which knows no local time")
    return interval


def _expression(cron: str) -> str:
    if not isinstance(cron, str) or len(cron) > _LONGEST_CRON or len(cron.split()) != 5:
        raise InvalidInput(f"cron {str(cron)[:64]!r} is not usable; {_FIELDS}")
    return cron


def _parse(cron: str, local: datetime) -> CronSim:
    try:
        return CronSim(_expression(cron), local)
    except (CronSimError, ValueError, TypeError, AssertionError) as error:
        minute, hour, day, _, weekday = cron.split()
        if str(error) == _BAD_DAY and _is_usable(f"{minute} {hour} {day} * {weekday}", local):
            raise InvalidInput(f"cron {cron!r} never ticks: there is no day {day} in these months") from None
        raise InvalidInput(f"cron {cron!r} is not usable ({str(error).lower()}); {_FIELDS}") from None


def _is_usable(cron: str, local: datetime) -> bool:
    try:
        CronSim(cron, local)
    except (CronSimError, ValueError, TypeError, AssertionError):
        return False
    return True
