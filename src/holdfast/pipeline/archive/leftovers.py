"""Leftovers: objects that an archiver wrote and never committed, because it died or was replaced.

Most are taken over: the next driver writes the same objects again and finds them there. Where it cuts the log
elsewhere (a lost checkpoint, another batch size), they stay behind. Such an object may be removed once
the cursor has passed it: from then on no manifest can list it any more, whoever is still at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.pipeline.archive.manifest import Manifest
from holdfast.pipeline.archive.naming import folder, parse_object
from holdfast.pipeline.offsets import Spot, is_after
from holdfast.pipeline.stores import ObjectStore


class Leftovers:
    """Objects beyond the cursors when an archiver starts."""

    def __init__(self, store: ObjectStore, cursors: Mapping[Spot, str | None]) -> None:
        self._store = store
        self._suspects = {
            entry.name: (Spot(batch.partition, batch.channel), batch.last)
            for place in sorted({folder(spot.channel) for spot in cursors})
            for entry in store.list(place)
            if (batch := parse_object(entry.name)) is not None
            and (spot := Spot(batch.partition, batch.channel)) in cursors
            and is_after(batch.last, cursors[spot])
        }

    def remove(self, committed: Iterable[Manifest]) -> list[str]:
        """Remove those that the commits passed over; answers their names."""
        removed = []
        for manifest in committed:
            for each in manifest.objects:
                self._suspects.pop(each.object, None)
            for name, (spot, last) in list(self._suspects.items()):
                if spot == manifest.spot and last <= manifest.last:
                    self._store.delete(name)
                    del self._suspects[name]
                    removed.append(name)
        return removed
