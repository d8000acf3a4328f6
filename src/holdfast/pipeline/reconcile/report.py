"""The report of a reconciliation: counts, and which events keep them from being equal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.upkeep.state import put_report, reconciliation

log = logging.getLogger(__name__)
_NAMED = 20
"""The differences that are stored with a report, at most."""

Side = Literal["archive", "warehouse"]
DifferenceKind = Literal["waiting", "missing", "surplus", "doubled", "changed", "unreadable", "gap"]


class Difference(NamedTuple):
    """One event that is not where it should be, or an object that hides some."""

    where: Side
    kind: DifferenceKind
    partition: int
    position: str
    source: str | None
    id: str
    """The event's id; for an archive's object or manifest, its name."""


class WrongPosition(NamedTuple):
    """A position whose rows in the warehouse are not what they should be."""

    partition: int
    position: str
    kinds: tuple[DifferenceKind, ...]
    expected: str | None
    """The transaction id of the event that belongs there. None: nothing does."""


class Tally(NamedTuple):
    """How many there are of one difference."""

    where: Side
    kind: DifferenceKind
    events: int


@dataclass(frozen=True, slots=True)
class ReconcileReport:
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
    """Published again under the same id with the same content: they are in the warehouse once."""
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


def store_report(connection: Connection, namespace: str, report: ReconcileReport) -> None:
    """Keep the last report of a channel in the first store. A failure is logged: the report itself holds."""
    body = report.to_json()
    body["differences"] = body["differences"][:_NAMED]
    name = reconciliation(report.channel)
    try:
        connection.run(put_report(connection.backends[0], namespace, name, body, listed=True))
    except HoldfastError as error:
        log.warning("the report on %s could not be kept for the server: %s", report.channel, error)
