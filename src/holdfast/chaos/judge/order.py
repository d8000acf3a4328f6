"""Judgement on order: where a consumer is ordered, a key's events are handed out one by one (I13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.chaos.evidence import Evidence, Key, Owner
from holdfast.chaos.history import Call, of


class _Committed(NamedTuple):
    """An event whose publisher was told so, by a moment."""

    key: str
    by: int


class _Claims(NamedTuple):
    """How often a job was leased, as far as anybody was told, and when first: asked and answered."""

    position: str
    leases: int
    asked: int
    answered: int


class _End(NamedTuple):
    """The first end of a job that was accepted: it was still live when that was asked for."""

    token: int
    asked: int


def overtaken(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Handed out while an earlier event of its key, committed before it was asked for, was certainly live.

    A job that may have ended and been revived unseen is left out: its token rose without a lease.
    """
    ordered = {owner for owner, terms in store.terms.items() if terms.ordered}
    if not ordered:
        return
    committed, ends = _committed(calls), _ends(calls)
    lanes: dict[tuple[Owner, str], list[tuple[str, Key, _Claims]]] = defaultdict(list)
    for job, claims in _claims(calls, ordered).items():
        if event := committed.get((job[0], claims.position)):
            lanes[job[:2], event.key].append((claims.position, job, claims))
    for (_, key), lane in lanes.items():
        longest: tuple[_End, Key, int] | None = None
        for position, job, claims in sorted(lane):
            if longest is not None:
                end, earlier, by = longest
                if by < claims.asked and claims.answered < end.asked:
                    yield f"job {job} of the key {key!r} was handed out before {earlier} had ended"
            end_of = ends.get(job)
            known = end_of is not None and end_of.token == claims.leases
            if end_of is not None and known and (longest is None or end_of.asked > longest[0].asked):
                longest = end_of, job, committed[job[0], position].by


def _committed(calls: list[Call]) -> dict[tuple[str, str], _Committed]:
    """By channel and position: the events with a key."""
    found: dict[tuple[str, str], _Committed] = {}
    for call in of(calls, "publish"):
        for item, receipt in call.told():
            if item["key"] is not None:
                found.setdefault((item["channel"], receipt["position"]), _Committed(item["key"], call.ended))
    return found


def _claims(calls: list[Call], owners: set[Owner]) -> dict[Key, _Claims]:
    found: dict[Key, _Claims] = {}
    for call in of(calls, "claim"):
        for item in call.answers:
            if (item["channel"], item["consumer"]) in owners:
                job = item["channel"], item["consumer"], item["job"]
                before = found.get(job, _Claims(item["position"], 0, call.at, call.ended))
                first = min(before.asked, call.at), min(before.answered, call.ended)
                found[job] = _Claims(before.position, before.leases + 1, *first)
    return found


def _ends(calls: list[Call]) -> dict[Key, _End]:
    found: dict[Key, _End] = {}
    accepted = (
        (call, item) for call in of(calls, "complete", "bury") for item, yes in call.told() if yes is True
    )
    for call, item in accepted:
        job, end = (item["channel"], item["consumer"], item["job"]), _End(item["token"], call.at)
        found[job] = min(found.get(job, end), end)
    return found
