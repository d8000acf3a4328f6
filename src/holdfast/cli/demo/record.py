"""The demo's own record of what it was promised, kept apart from every store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.model.event import Event, Receipt


@dataclass(slots=True)
class Record:
    """What was acknowledged, by (channel, id), and what was refused."""

    acknowledged: dict[tuple[str, str], str] = field(default_factory=dict)
    """The position in each event's first receipt."""
    sent_again: int = 0
    duplicates: int = 0
    """How many were sent again and answered with their first receipt."""
    conflicts: int = 0
    stale: int = 0
    """Answers that came after their lease was lost, and were refused."""

    def note(self, channel: str, receipts: Iterable[Receipt]) -> None:
        """The store has acknowledged new events."""
        self.acknowledged |= {(channel, receipt.id): receipt.position for receipt in receipts}

    def note_again(self, channel: str, events: Sequence[Event], receipts: Sequence[Receipt]) -> None:
        """Events were sent once more."""
        self.sent_again += len(events)
        self.duplicates += sum(
            receipt.duplicate and self.acknowledged[channel, event.id] == receipt.position
            for event, receipt in zip(events, receipts, strict=True)
        )
