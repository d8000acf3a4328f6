"""Pages of dead letters: keyset pagination over (time of death, consumer, number), the latest first."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from holdfast.backends.postgres.operators import record
from holdfast.backends.postgres.session import Session
from holdfast.model.deadletters import DeadFilter, DeadLetter, DeadPage
from holdfast.model.errors import InvalidInput

_SCANNED = 2000
_STEP = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE = re.compile(r"[0-9a-f]{14}-[0-7][0-9a-f]{7}-[0-7][0-9a-f]{15}")


class _Place(NamedTuple):
    """A death that was shown, or a time: what follows died before it."""

    died_at: datetime | None = None
    consumer_id: int = 0
    seq: int = 0


async def read(session: Session, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
    """One page. The consumer, the time, and the fingerprint or else the reason are found by an index; for the
    rest dead letters are looked through, up to a bound."""
    place = _before(wanted.until, _parse(after))
    named = (wanted.channel, wanted.consumer, wanted.reason, wanted.fingerprint)
    if any("\x00" in (name or "") for name in named):  # no text of the server's has that
        return DeadPage([], None)
    letters: list[DeadLetter] = []
    step = limit if _indexed(wanted) else _STEP
    for _ in range(0, _SCANNED, _STEP):
        rows = await session.rows("dead_page", **_parameters(wanted, place), limit=step + 1)
        for row in rows[:step]:
            place = _Place(row[15], row[20], row[0])
            if wanted.holds(found := letter(row)):
                letters.append(found)
            if len(letters) == limit:
                more = row is not rows[-1]
                return DeadPage(letters, _format(place) if more else None)
        if len(rows) <= step:
            return DeadPage(letters, None)
    return DeadPage(letters, _format(place))


def letter(row: tuple[Any, ...]) -> DeadLetter:
    """A dead letter without its event."""
    return DeadLetter(record(row[:19]), row[19])


def _indexed(wanted: DeadFilter) -> bool:
    """Whether an index finds exactly what is meant."""
    one = wanted.reason is None or wanted.fingerprint is None
    return one and wanted.kind is None and wanted.text is None


def _parameters(wanted: DeadFilter, place: _Place) -> dict[str, Any]:
    return place._asdict() | {
        "channel": wanted.channel,
        "consumer": wanted.consumer,
        "reason": wanted.reason,
        "fingerprint": wanted.fingerprint,
        "since": wanted.since,
    }


def _before(until: datetime | None, place: _Place) -> _Place:
    if until is None or (place.died_at is not None and place.died_at < until):
        return place
    return _Place(until)


def _format(place: _Place) -> str:
    assert place.died_at is not None  # noqa: S101 - it was shown
    died = (place.died_at - _EPOCH) // timedelta(microseconds=1)
    return f"{died:014x}-{place.consumer_id:08x}-{place.seq:016x}"


def _parse(after: str | None) -> _Place:
    if after is None:
        return _Place()
    if not _PLACE.fullmatch(after):
        raise InvalidInput(f"after {after!r} is no place in a list of dead letters; use the one of a page")
    died, consumer_id, seq = (int(field, 16) for field in after.split("-"))
    return _Place(_EPOCH + timedelta(microseconds=died), consumer_id, seq)
