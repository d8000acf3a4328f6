"""Judgement on errors without a fault: nothing is raised or logged but what is documented (I20).

A call that did not come through while the machine was too slow is not held against the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.chaos.history import Call, of
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
            verb, error = item["verb"], item["error"]
            slow = error in _BY_LOAD and timeline.was_slow(item["began"], call.at)
            if error not in DOCUMENTED.get(verb, set()) and not slow:
                yield f"{verb} of {call.process} raised {error}: {item['message']}"


def logged(calls: list[Call], timeline: Timeline) -> Iterator[str]:
    """What a process logged as a warning or worse."""
    for call in of(calls, "logged"):
        for item in call.items:
            slow = timeline.was_slow(call.at - _RECENT, call.at)
            if not _EXPECTED.search(item["message"]) and not slow:
                yield f"{call.process} logged a {item['level']}: {item['message']}"
