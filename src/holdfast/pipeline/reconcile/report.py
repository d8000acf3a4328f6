"""The report of a reconciliation: counts, and which events keep them from being equal. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

Where = Literal["archive", "warehouse"]
Kind = Literal["waiting", "missing", "surplus", "doubled", "changed", "unreadable", "gap"]


class Difference(NamedTuple):
    """One event that is not where it should be, or an object that hides some."""

    where: Where
    kind: Kind
    partition: int
    position: str
    source: str | None
    id: str
    """The event's id; for an archive's object or manifest, its name."""


class Wrong(NamedTuple):
    """A position whose rows in the warehouse are not what they should be."""

    partition: int
    position: str
    kinds: tuple[Kind, ...]
    rightful: str | None
    """The transaction id of the one event that is to stand there. None: nothing is."""


class Tally(NamedTuple):
    """How many there are of one difference."""

    where: Where
    kind: Kind
    events: int


@dataclass(frozen=True, slots=True)
class Report:
    """One channel, all of it or one day."""

    channel: str
    day: date | None
    published: int
    """In the log, and where retention has trimmed it, what the archive's manifests prove."""
    from_manifests: int
    """So many of them are known from the manifests alone."""
    archived: int | None
    """None: nothing archives this channel."""
    ingested: int | None
    """None: nothing ingests this channel."""
    failed: int | None
    repeats: int | None
    """Published again under the same id with the same content: they stand in the warehouse once."""
    not_compared: int
    """In the warehouse or failed, and from before what the log or the archive still prove."""
    tallies: Sequence[Tally]
    differences: Sequence[Difference]
    """The first of them."""

    @property
    def equal(self) -> bool:
        """published = archived = ingested + failed, event by event."""
        return not self.tallies

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        found = {name: getattr(self, name) for name in self.__slots__}
        lists = {
            "tallies": [each._asdict() for each in self.tallies],
            "differences": [each._asdict() for each in self.differences],
        }
        return {"equal": self.equal, **found, "day": self.day and self.day.isoformat(), **lists}
