"""Checks of locks and tokens: one holder at a time, nothing under a wrong token (I5, I6, I16)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from holdfast_chaos.history import Call, of


def overlapping(calls: list[Call]) -> Iterator[str]:
    """Taken, in the store's time, while another one held it and had not freed it."""
    held: dict[str, dict[int, tuple[datetime, datetime]]] = defaultdict(dict)
    for call in of(calls, "lock"):
        for item, lock in call.told():
            if lock is not None:
                until = datetime.fromisoformat(lock["until"])
                held[item["lock"]][lock["token"]] = until - timedelta(seconds=item["ttl"]), until
    for call in of(calls, "renew"):
        for _, lock in call.told():
            if times := held[lock["lock"]].get(lock["token"]):
                until = max(times[1], datetime.fromisoformat(lock["until"]))
                held[lock["lock"]][lock["token"]] = times[0], until
    freed = _freed(calls)
    for name, leases in held.items():
        for (token, (_, until)), (later, (began, _)) in pairwise(sorted(leases.items())):
            if began < until and (name, token) not in freed:
                yield f"the lock {name} was taken under {later} at {began}, and {token} held it until {until}"


def _freed(calls: list[Call]) -> set[tuple[str, int]]:
    """By their own holders; where the answer was lost, perhaps."""
    return {
        (item["lock"], item["token"])
        for call in of(calls, "unlock")
        for item, yes in call.told() or [(each, True) for each in call.items]
        if yes
    }


def outdated(calls: list[Call]) -> Iterator[str]:
    """Trimmed under a token although a newer one had been issued before that was asked for."""
    issued: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for call in of(calls, "lock"):
        for item, lock in call.told():
            if lock is not None:
                issued[item["lock"]].append((call.ended, lock["token"]))
    newest = {name: _rising(grants) for name, grants in issued.items()}
    for call in of(calls, "trim"):
        for item, _ in call.told():
            grants = newest.get(item["lock"], [])
            before = bisect_left(grants, (call.at, 0))
            if before and grants[before - 1][1] > item["token"]:
                token = grants[before - 1][1]
                yield f"{item['channel']} was trimmed under token {item['token']} after {token} was issued"


def _rising(grants: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """By the moment when it was known: the highest token up to then."""
    found: list[tuple[int, int]] = []
    for moment, token in sorted(grants):
        found.append((moment, max(token, found[-1][1] if found else 0)))
    return found


_REFUSED = 400


def trespassed(calls: list[Call]) -> Iterator[str]:
    """Requests that were served; whoever made them notes the channel that they were about, and the one that
    their token was issued for."""
    for call in of(calls, "request"):
        for item, status in call.told():
            if status < _REFUSED and item["channel"] != item["granted"]:
                granted = f"a token for {item['granted']}" if item["granted"] else "no token"
                yield f"{item['channel']} was served to somebody with {granted}"
