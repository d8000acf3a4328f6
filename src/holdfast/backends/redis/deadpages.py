"""Pages of dead letters: the latest death first, over one consumer or all, with bounded effort.

Every consumer's dead letters are in order of their time of death, and so are those of each of its
fingerprints. A page merges these orders. What they do not know (the reason, the error) is looked at letter by
letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.redis.codec import FAR, named, to_micros
from holdfast.backends.redis.dead import Dead
from holdfast.backends.redis.session import Session
from holdfast.model.deadletters import DeadFilter, DeadLetter, DeadPage
from holdfast.model.errors import InvalidInput

_SEARCH = 2_000  # letters that one page looks at, at most
_STEP = 500
_TOKEN = re.compile(r"([0-9]{1,16})\.([0-9]{1,15})\.([0-9]{1,20}-[0-9]{1,20})")
_LAST_REF = 10**15


class Place(NamedTuple):
    """Where a dead letter stands: the greatest first. At one time, lower numbers of consumers come first."""

    died: int
    minus_ref: int
    entry: bytes

    @property
    def ref(self) -> int:
        """The number of its consumer."""
        return -self.minus_ref


class DeadPages:
    """Finds the dead letters that a filter means."""

    def __init__(self, session: Session, dead: Dead) -> None:
        self._session, self._dead = session, dead

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        """Up to `limit` of them, and where to go on."""
        place, letters, seen, more = _start(wanted, after), list[DeadLetter](), 0, True
        while more and seen < _SEARCH and len(letters) < limit:
            places, more = await self._places(wanted, place, _size(wanted, limit - len(letters)))
            found = await self._dead.letters([(each.ref, each.entry) for each in places])
            hits = [(at, each) for at, each in zip(places, found, strict=True) if each and wanted.holds(each)]
            hits = hits[: limit - len(letters)]
            letters += [letter for _, letter in hits]
            seen += len(places)
            if places:
                place = hits[-1][0] if len(letters) == limit else places[-1]
                more = more or place != places[-1]
        return DeadPage(letters, _token(place) if more else None)

    async def _places(self, wanted: DeadFilter, after: Place, size: int) -> tuple[list[Place], bool]:
        """The next `size` places in the one order over all consumers, and whether there are more."""
        cluster = "" if wanted.fingerprint is None else f"={wanted.fingerprint}"
        options = (named(wanted.channel), named(wanted.consumer), cluster, size)
        most, *orders = await self._session.run("dead_places", *options, after.died, after.ref, after.entry)
        places = sorted((place for order in orders for place in _parse(*order)), reverse=True)
        # An order that was cut may go on before the end of another one.
        ends = [_parse(*order)[-1] for order in orders if len(order[1]) == 2 * most]
        end = max(ends, default=places[-1] if places else after)
        since = 0 if wanted.since is None else to_micros(wanted.since)
        near = [place for place in places if place >= end and place.died >= since]
        return near[:size], len(near) > size or (bool(ends) and end.died >= since)


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


def _token(place: Place) -> str:
    return f"{place.died}.{place.ref}.{place.entry.decode()}"


def _size(wanted: DeadFilter, missing: int) -> int:
    """How many to look at next: where the order knows all that is asked for, no more than are missing."""
    ordered = wanted.reason is wanted.kind is wanted.text is None
    return min(_STEP, missing) if ordered else _STEP
