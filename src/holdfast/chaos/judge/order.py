"""Judgement on order: where a consumer is ordered, a key's events are handed out one by one (I13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.chaos.evidence import Evidence, Key, Owner
from holdfast.chaos.history import Call, of


class _Claims(NamedTuple):
    """How often a job was leased, as far as anybody was told, and when first: asked and answered."""

    position: str
    tokens: tuple[int, ...]
    asked: int
    answered: int


class _Turn(NamedTuple):
    """A job in the order of its key, with moments of its life."""

    position: str
    job: Key
    committed: int
    """Its publisher knew of it by then."""
    asked: int
    answered: int
    """Of the first lease."""
    live: int
    """It was certainly live until then; 0 where that is not known."""


def overtaken(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Handed out while an earlier event of its key, committed before it was asked for, was certainly live."""
    ordered = {owner for owner, terms in store.terms.items() if terms.ordered}
    for (_, key), turns in _lanes(calls, ordered).items() if ordered else ():
        for earlier, later in _overtaking(sorted(turns)):
            yield f"job {later.job} of the key {key!r} was handed out before {earlier.job} had ended"


def _overtaking(turns: Iterable[_Turn]) -> Iterator[tuple[_Turn, _Turn]]:
    """Each one is held against that one before it which was live for the longest."""
    longest: _Turn | None = None
    for turn in turns:
        if longest and longest.committed < turn.asked and turn.answered < longest.live:
            yield longest, turn
        if turn.live > (longest.live if longest else 0):
            longest = turn


def _lanes(calls: list[Call], ordered: set[Owner]) -> dict[tuple[Owner, str], list[_Turn]]:
    committed, ends = _committed(calls), _ends(calls)
    lanes: dict[tuple[Owner, str], list[_Turn]] = defaultdict(list)
    for job, (position, tokens, asked, answered) in _claims(calls, ordered).items():
        if event := committed.get((job[0], position)):
            key, moment = event
            token, ending = ends.get(job, (0, 0))
            # A token that rose without a lease: the job may have ended and been revived unseen.
            live = ending if sum(each <= token for each in tokens) == token else 0
            lanes[job[:2], key].append(_Turn(position, job, moment, asked, answered, live))
    return lanes


def _committed(calls: list[Call]) -> dict[tuple[str, str], tuple[str, int]]:
    """By channel and position: the key, and when its publisher was told."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for call in of(calls, "publish"):
        for item, receipt in call.told():
            if item["key"] is not None:
                found.setdefault((item["channel"], receipt["position"]), (item["key"], call.ended))
    return found


def _claims(calls: list[Call], owners: set[Owner]) -> dict[Key, _Claims]:
    found: dict[Key, _Claims] = {}
    for call in of(calls, "claim"):
        for item in call.answers:
            if (item["channel"], item["consumer"]) in owners:
                job = item["channel"], item["consumer"], item["job"]
                before = found.get(job, _Claims(item["position"], (), call.at, call.ended))
                first = min(before[2:], (call.at, call.ended))
                found[job] = _Claims(before.position, (*before.tokens, item["token"]), *first)
    return found


def _ends(calls: list[Call]) -> dict[Key, tuple[int, int]]:
    """The first end that was accepted: under which token, and when it was asked for."""
    found: dict[Key, tuple[int, int]] = {}
    for call in of(calls, "complete", "bury"):
        for item in (item for item, yes in call.told() if yes is True):
            job, end = (item["channel"], item["consumer"], item["job"]), (item["token"], call.at)
            found[job] = min(found.get(job, end), end)
    return found
