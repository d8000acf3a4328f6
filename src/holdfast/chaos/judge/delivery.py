"""Judgement on deliveries without a fault: no job comes twice, none is abandoned, no lease is nobody's (I18).

A job comes again only where a verb asked for it: a retry, a release, a requeue, a revival.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from itertools import chain, pairwise

from holdfast.chaos.evidence import Evidence, Key
from holdfast.chaos.history import Call, Item, accepted, of, refused
from holdfast.chaos.judge.timeline import Timeline


def lapsed(calls: list[Call], store: Evidence, timeline: Timeline) -> set[Key]:
    """Jobs whose lease may have ended while the machine was too slow for their holder to extend it."""
    found: set[Key] = set()
    last: dict[Key, int] = {}
    for call in sorted(of(calls, "claim", "complete", "retry", "bury"), key=lambda call: call.at):
        for item in call.answers if call.verb == "claim" else call.items:
            key = _key(item)
            terms, before = store.terms.get(key[:2]), last.get(key, call.ended)
            late = terms is not None and call.ended - before > terms.lease.total_seconds() * 1e9
            if late and timeline.was_slow(before, call.ended):
                found.add(key)
            if call.verb == "claim":
                last[key] = call.ended
    return found


def redelivered(calls: list[Call], store: Evidence, spared: Set[Key] = frozenset()) -> Iterator[str]:
    """Handed out twice, and nobody asked for it."""
    back = _settled(calls, "retry")
    asked = _moved(calls)
    leases: dict[Key, list[tuple[int, int, int]]] = defaultdict(list)
    for call in of(calls, "claim"):
        for item in call.answers:
            leases[_key(item)].append((item["token"], call.at, call.ended))
    for key, held in leases.items():
        for (token, at, _), (later, _, ended) in pairwise(sorted(held)):
            if (key, token) in back or any(a < ended and at < b for a, b in asked.get(key, ())):
                continue
            if key[:2] in store.terms and key not in spared:
                yield f"job {key} was handed out under the token {token} and again under {later}"


def lost(calls: list[Call], store: Evidence, spared: Set[Key] = frozenset()) -> Iterator[str]:
    """Refused to its holder, and nobody took it away. To extend what has just ended is no loss."""
    asked = _moved(calls).keys()
    ended = _settled(calls, "complete", "retry", "bury")
    for item in refused(calls, "complete", "retry", "bury", "extend"):
        key, token = _key(item), item["token"]
        if key not in asked | spared and (key, token) not in ended and key[:2] in store.terms:
            yield f"the lease {token} on job {key} was lost"


def abandoned(calls: list[Call], store: Evidence, spared: Set[Key] = frozenset()) -> Iterator[str]:
    """Counted as the work of somebody who vanished."""
    for item in chain.from_iterable(call.answers for call in of(calls, "claim")):
        if item["abandonments"] and _key(item) not in spared:
            yield f"job {_key(item)} was handed out after {item['abandonments']} abandonments"
    for row in store.rows:
        if (row.abandonments or row.reason == "crash_loop") and row.key not in spared:
            yield f"job {row.key} is {row.state} with {row.abandonments} abandonments: {row.reason}"


def unheld(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Leased in the store, and handed out to nobody, or still leased when everybody has gone."""
    told = {(_key(item), item["token"]) for call in of(calls, "claim") for item in call.answers}
    for move in store.moves or []:
        began = move.after == "leased" and move.token is not None and move.token != move.old_token
        if began and (move.key, move.token) not in told:
            yield f"job {move.key} was leased at {move.at} under the token {move.token}, and nobody got it"
    for row in store.rows:
        if row.state == "leased":
            yield f"job {row.key} is leased, and nobody is left who could hold it"


def _moved(calls: list[Call]) -> dict[Key, list[tuple[int, int]]]:
    """When an operator made a job ready again: asked and answered."""
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for call in of(calls, "requeue", "revive"):
        for item, yes in call.told() or [(each, True) for each in call.items]:
            if yes:
                found[_key(item)].append((call.at, call.ended or call.at))
    return found


def _settled(calls: list[Call], *verbs: str) -> set[tuple[Key, int]]:
    """Leases that were given back or ended, or may have been: what has no answer was asked for."""
    open_ones = (item for call in of(calls, *verbs) if call.outcome == "unknown" for item in call.items)
    return {(_key(item), item["token"]) for item in chain(accepted(calls, *verbs), open_ones)}


def _key(item: Item) -> Key:
    return item["channel"], item["consumer"], item["job"]
