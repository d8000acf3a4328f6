"""Checks of a run without faults: no job comes twice, no lease is nobody's, no error undocumented (I18, I20).

A job comes again only if a verb asked for it: a retry, a release, a requeue, a revival. A call that did not
come through while the machine was too slow is not held against the store.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Set
from itertools import chain, pairwise

from holdfast_chaos.checks.timeline import Timeline
from holdfast_chaos.final_state import FinalState, Key
from holdfast_chaos.history import Call, Item, accepted, job_key, of, refused


def lapsed(calls: list[Call], store: FinalState, timeline: Timeline) -> set[Key]:
    """Jobs whose lease may have ended while the machine was too slow for their holder to extend it."""
    found: set[Key] = set()
    last: dict[Key, int] = {}
    for call in sorted(of(calls, "claim", "complete", "retry", "bury"), key=lambda call: call.at):
        for item in call.answers if call.verb == "claim" else call.items:
            key = job_key(item)
            terms, before = store.terms.get(key[:2]), last.get(key, call.ended)
            late = terms is not None and call.ended - before > terms.lease.total_seconds() * 1e9
            if late and timeline.was_slow(before, call.ended):
                found.add(key)
            if call.verb == "claim":
                last[key] = call.ended
    return found


def redelivered(calls: list[Call], store: FinalState, spared: Set[Key] = frozenset()) -> Iterator[str]:
    """Handed out twice, and nobody asked for it."""
    back = _settled(calls, "retry")
    asked = _moved(calls)
    leases: dict[Key, list[tuple[int, int, int]]] = defaultdict(list)
    for call in of(calls, "claim"):
        for item in call.answers:
            leases[job_key(item)].append((item["token"], call.at, call.ended))
    for key, held in leases.items():
        for (token, at, _), (later, _, ended) in pairwise(sorted(held)):
            if (key, token) in back or any(a < ended and at < b for a, b in asked.get(key, ())):
                continue
            if key[:2] in store.terms and key not in spared:
                yield f"job {key} was handed out under the token {token} and again under {later}"


def lost(calls: list[Call], store: FinalState, spared: Set[Key] = frozenset()) -> Iterator[str]:
    """Refused to its holder, and nobody took it away. To extend what has just ended is no loss."""
    asked, cancelled = _moved(calls).keys(), _cancelled(calls)
    ended = _settled(calls, "complete", "retry", "bury")
    for item in refused(calls, "complete", "retry", "bury", "extend"):
        key, token = job_key(item), item["token"]
        if (
            (item["channel"], item["id"]) not in cancelled
            and key not in asked | spared
            and (key, token) not in ended
            and key[:2] in store.terms
        ):
            yield f"the lease {token} on job {key} was lost"


def abandoned(calls: list[Call], store: FinalState, spared: Set[Key] = frozenset()) -> Iterator[str]:
    """Counted as abandoned by a worker that vanished."""
    for item in chain.from_iterable(call.answers for call in of(calls, "claim")):
        if item["abandonments"] and job_key(item) not in spared:
            yield f"job {job_key(item)} was handed out after {item['abandonments']} abandonments"
    for row in store.rows:
        if (row.abandonments or row.reason == "crash_loop") and row.key not in spared:
            yield f"job {row.key} is {row.state} with {row.abandonments} abandonments: {row.reason}"


def unheld(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Leased in the store, and handed out to nobody, or still leased when everybody has gone."""
    told = {(job_key(item), item["token"]) for call in of(calls, "claim") for item in call.answers}
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
                found[job_key(item)].append((call.at, call.ended or call.at))
    return found


def _cancelled(calls: list[Call]) -> set[tuple[str, str]]:
    """Events whose jobs were cancelled while they ran, or may have been: for all consumers."""
    running = (
        (item, answer)
        for call in of(calls, "cancel")
        for item, answer in call.told() or [(each, 1) for each in call.items]
        if item.get("running")
    )
    return {(item["channel"], item["id"]) for item, answer in running if answer}


def _settled(calls: list[Call], *verbs: str) -> set[tuple[Key, int]]:
    """Leases that were given back or ended, or may have been: what has no answer was asked for."""
    open_ones = (item for call in of(calls, *verbs) if call.outcome == "unknown" for item in call.items)
    return {(job_key(item), item["token"]) for item in chain(accepted(calls, *verbs), open_ones)}


DOCUMENTED = {"publish": {"Overloaded", "IdConflict"}, "remove": {"NotFound"}}
"""By verb: what the contract lets it raise in such a run."""
_EXPECTED = re.compile(
    r"attempt \d+ at event \S+ failed: (RuntimeError: (not this time|never)|Terminal: no use)"
    r"|lease lost on job "  # whether somebody took it away shows in its refused answer
    r"|ended by what a fault may cause: Unavailable"  # checked by the call that raised it
    r"|event \S+ of \S+ failed for good: reason rejected"  # what no warehouse takes
)
_RECENT = 10 * 10**9
"""Nanoseconds: what is logged may be about a call that began so long ago."""
_BY_LOAD = {"Unavailable", "LockLost"}


def raised(calls: list[Call], timeline: Timeline) -> Iterator[str]:
    """What a call of the store raised."""
    for call in of(calls, "raised"):
        for item in call.items:
            if not _is_documented(item) and not _was_slow(call, item, timeline):
                yield f"{item['verb']} of {call.process} raised {item['error']}: {item['message']}"


def logged(calls: list[Call], timeline: Timeline) -> Iterator[str]:
    """What a process logged as a warning or worse."""
    for call in of(calls, "logged"):
        for item in call.items:
            if not _is_expected(item) and not _was_slow(call, item, timeline):
                yield f"{call.process} logged a {item['level']}: {item['message']}"


def excused(calls: list[Call], timeline: Timeline) -> int:
    """How many of both were not held against the store, since the machine was slow."""
    known = {"raised": _is_documented, "logged": _is_expected}
    return sum(
        not known[call.verb](item) and _was_slow(call, item, timeline)
        for call in of(calls, *known)
        for item in call.items
    )


def _is_documented(item: Item) -> bool:
    return item["error"] in DOCUMENTED.get(item["verb"], set())


def _is_expected(item: Item) -> bool:
    return _EXPECTED.search(item["message"]) is not None


def _was_slow(call: Call, item: Item, timeline: Timeline) -> bool:
    """Whether what was raised or logged may come from a machine that was too slow for the call."""
    if call.verb == "logged":
        return timeline.was_slow(call.at - _RECENT, call.at)
    return item["error"] in _BY_LOAD and timeline.was_slow(item["began"], call.at)
