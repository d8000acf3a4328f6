"""Judgement on cursors: a stream consumer's never passes an event that it has not seen (I14)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from holdfast.chaos.evidence import Evidence, Owner
from holdfast.chaos.history import Call, of


def passed(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Still in the log, at or below the cursor of a consumer that notes what it saw, and not among that.

    Such a consumer starts at the beginning of the log. What was trimmed is I7's.
    """
    seen: dict[Owner, set[str]] = defaultdict(set)
    for call in of(calls, "archived"):
        for item in call.items:
            seen[item["channel"], item["consumer"]].add(item["id"])
    for event in store.log if seen else ():
        for (channel, consumer), ids in seen.items():
            at = store.cursors.get((channel, consumer)) or ""
            if channel == event.channel and event.position <= at and event.id not in ids:
                yield f"the cursor of {consumer} at {at} passed event {event.id} at {event.position}"
