"""Dead letters: how many there are, pages of them, each one with its errors, and the ways out of dead.

Every consumer's dead letters are in order of their time of death, and so are those of each of its
fingerprints. A page merges these orders, with bounded effort. What they do not know (the reason, the error)
is looked at letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast import failpoints
from holdfast.backends.redis.codec import FAR, decode, named, pairs, patched, to_micros
from holdfast.backends.redis.leases import is_id, record_of
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.model.deadletters import Cluster, DeadCount, DeadFilter, DeadLetter, DeadPage, Drift, Fold
from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.upkeep import Lock

MOST = 1_000
"""How many jobs can move in one step: the server does nothing else meanwhile."""
_PART = 200  # letters in one answer, each with every attempt's error
_SEARCH = 2_000  # letters that one page looks at, at most
_STEP = 500
_RECOUNT = 500  # letters, or clusters, that one script of a recount looks at
_ONE = ord("1")
_REASON = "dead:"
_TOKEN = re.compile(r"([0-9]{1,16})\.([0-9]{1,15})\.([0-9]{1,20}-[0-9]{1,20})")
_LAST_REF = 10**15

Wrong = tuple[bytes, int, int]
"""A reason or a fingerprint, how many were counted, how many there are."""


class Place(NamedTuple):
    """The place of a dead letter in the order: the greatest first. At one time, lower numbers of consumers
    come first."""

    died: int
    minus_ref: int
    entry: bytes

    @property
    def ref(self) -> int:
        """The number of its consumer."""
        return -self.minus_ref


class DeadLetters:
    """Counts move with every transition, so that nothing is ever folded."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def counts(self) -> list[DeadCount]:
        found = [
            DeadCount(channel.decode(), consumer.decode(), name.removeprefix(_REASON), int(count))
            for channel, consumer, flat in await self._session.run("deadletters/counts")
            for name, count in pairs(flat).items()
            if name.startswith(_REASON) and int(count)
        ]
        return sorted(found, key=lambda each: (each.channel, each.consumer, each.reason))

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        """Each is read again with its sample, so that the two belong together."""
        options = (named(channel), named(consumer), limit)
        largest = [
            (-int(size), int(ref), fingerprint)
            for ref, flat in await self._session.run("deadletters/clusters", *options)
            for fingerprint, size in zip(flat[::2], flat[1::2], strict=True)
        ]
        chosen = [(ref, fingerprint) for _, ref, fingerprint in sorted(largest)[:limit]]
        found = [
            _cluster(*row)
            for part in _parts(chosen)
            for row in await self._session.run("deadletters/samples", *part)
        ]
        return sorted(found, key=lambda each: -each.count)

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        place, letters, seen, more = _start(wanted, after), list[DeadLetter](), 0, True
        # Where the order knows all that is asked for, no more are looked at than are missing.
        ordered = wanted.reason is wanted.kind is wanted.text is None
        while more and seen < _SEARCH and len(letters) < limit:
            missing = limit - len(letters)
            places, more = await self._places(wanted, place, min(_STEP, missing) if ordered else _STEP)
            found = await self._letters(places)
            hits = [(at, each) for at, each in zip(places, found, strict=True) if each and wanted.holds(each)]
            hits = hits[:missing]
            letters += [letter for _, letter in hits]
            seen += len(places)
            if places:
                place = hits[-1][0] if len(letters) == limit else places[-1]
                more = more or place != places[-1]
        return DeadPage(letters, f"{place.died}.{place.ref}.{place.entry.decode()}" if more else None)

    async def _places(self, wanted: DeadFilter, after: Place, size: int) -> tuple[list[Place], bool]:
        """The next `size` places in the one order over all consumers, and whether there are more."""
        cluster = "" if wanted.fingerprint is None else f"={wanted.fingerprint}"
        options = (named(wanted.channel), named(wanted.consumer), cluster, size)
        most, *orders = await self._session.run(
            "deadletters/places", *options, after.died, after.ref, after.entry
        )
        places = sorted((place for order in orders for place in _parse(*order)), reverse=True)
        # An order that was cut may go on before the end of another one.
        ends = [_parse(*order)[-1] for order in orders if len(order[1]) == 2 * most]
        end = max(ends, default=places[-1] if places else after)
        since = 0 if wanted.since is None else to_micros(wanted.since)
        near = [place for place in places if place >= end and place.died >= since]
        return near[:size], len(near) > size or (bool(ends) and end.died >= since)

    async def _letters(self, places: Sequence[Place]) -> list[DeadLetter | None]:
        """The dead letters at these places, without their events; None for what is not dead any more."""
        return [
            None if row is None else _letter(row)
            for part in _parts([(place.ref, place.entry) for place in places])
            for row in await self._session.run("deadletters/letters", *part)
        ]

    async def letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        """Its event is as it was kept, or as the log has it."""
        if not is_id(job_id):
            return None
        answer = await self._session.run("deadletters/letter", f"{channel}/{consumer}", job_id)
        if answer is None:
            return None
        row, entry, patch = answer
        letter = _letter(row)
        if entry is None:  # another client removed it before the job died
            return letter
        event = decode(job_id.encode(), entry)
        original = None if patch is None else event.data
        return DeadLetter(letter.record, letter.fingerprint, patched(event, patch), original)

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        patch = b"" if data is None else b"=" + data
        revived = await self._move("deadletters/revive", job_ids, f"{channel}/{consumer}", patch)
        failpoints.hit("dead.after_revive")
        return revived

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        purged = await self._move("deadletters/purge", job_ids, f"{channel}/{consumer}")
        failpoints.hit("dead.after_purge")
        return purged

    async def _move(self, script: str, job_ids: Sequence[str], *options: Argument) -> list[bool]:
        if len(job_ids) > MOST:
            raise TooLarge(f"{len(job_ids)} jobs in one step; the limit is {MOST}")
        known = [job_id for job_id in job_ids if is_id(job_id)]
        digits = iter(await self._session.run(script, *options, *known) if known else b"")
        return [is_id(job_id) and next(digits) == _ONE for job_id in job_ids]

    async def fold(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
        """There is never anything to fold."""
        if lock is not None:
            await self._session.run("locks/check", lock.name, lock.token)
        return Fold(0)

    async def recount(self, repair: bool, lock: Lock) -> list[Drift]:
        """Page by page, each checks the lock. A wrong count by fingerprint has that as its reason."""
        await self._session.run("locks/check", lock.name, lock.token)
        drifts: list[Drift] = []
        for ref, channel, consumer in await self._session.run("deadletters/consumers"):
            options = (_RECOUNT, int(repair), lock.name, lock.token)
            wrong = [
                *await self._recount_reasons(ref, *options),
                *await self._recount_clusters(ref, *options),
            ]
            names = channel.decode(), consumer.decode()
            drifts += [Drift(*names, what.decode(), counted, found) for what, counted, found in wrong]
        return sorted(drifts, key=lambda each: (each.channel, each.consumer, each.reason))

    async def _recount_reasons(self, ref: bytes, *options: Argument) -> list[Wrong]:
        while (wrong := await self._session.run("deadletters/recount", ref, *options)) is None:
            failpoints.hit("dead.mid_recount")
        return [(reason, counted, found) for reason, counted, found in wrong]

    async def _recount_clusters(self, ref: bytes, *options: Argument) -> list[Wrong]:
        wrong: dict[bytes, Wrong] = {}  # a walk may come by twice
        cursor = b""
        while cursor != b"0":
            cursor, *rows = await self._session.run(
                "deadletters/recount_clusters", ref, cursor or b"0", *options
            )
            wrong |= {row[0]: (row[0], row[1], row[2]) for row in rows}
        return list(wrong.values())


def _parts(rows: Sequence[tuple[Argument, ...]]) -> Iterator[list[Argument]]:
    """As many rows as one script should show at a time, flat."""
    for start in range(0, len(rows), _PART):
        yield [value for row in rows[start : start + _PART] for value in row]


def _letter(row: Sequence[Any]) -> DeadLetter:
    return DeadLetter(record_of(*row), pairs(row[-1]).get("fingerprint", b"").decode())


def _cluster(fingerprint: bytes, size: bytes, row: Sequence[Any]) -> Cluster:
    sample = _letter(row)
    return Cluster(sample.record.channel, sample.record.consumer, fingerprint.decode(), int(size), sample)


def _parse(ref: bytes, flat: Sequence[bytes]) -> list[Place]:
    rows = zip(flat[::2], flat[1::2], strict=True)
    return [Place(int(float(died)), -int(ref), entry) for entry, died in rows]


def _start(wanted: DeadFilter, after: str | None) -> Place:
    until = FAR if wanted.until is None else to_micros(wanted.until)
    bounds = [Place(until, -_LAST_REF, b"")]
    if after is not None:
        found = _TOKEN.fullmatch(after)
        if found is None:
            raise InvalidInput(
                f"{after[:60]!r} is no place in a list of dead letters; use a page's own 'after'"
            )
        bounds.append(Place(int(found[1]), -int(found[2]), found[3].encode()))
    return min(bounds)
