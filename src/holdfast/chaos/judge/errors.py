"""Judgement on errors without a fault: nothing is raised or logged but what is documented (I20).

A call that did not come through while the machine was too slow is not held against the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.chaos.history import Call, Item, of
from holdfast.chaos.judge.timeline import Timeline

DOCUMENTED = {"publish": {"Overloaded", "IdConflict"}, "remove": {"NotFound"}}
"""By verb: what the contract lets it raise in such a run."""
_EXPECTED = re.compile(
    r"attempt \d+ at event \S+ failed: (RuntimeError: (not this time|never)|Terminal: no use)"
    r"|lease lost on job "  # whether somebody took it away is judged by its refused answer
    r"|ended by what a fault may cause: Unavailable"  # judged by the call that raised it
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
