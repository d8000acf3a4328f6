"""Standing: how far an operation is, as a person reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.deadletters.operation import Operation
from holdfast.model.duration import format_duration
from holdfast.server.pages.question import VERBS
from holdfast.server.pages.wanted import NAMES, reason_word
from holdfast.server.pages.words import moment

TONES = {
    "waiting": "calm",
    "running": "flow",
    "done": "good",
    "cancelled": "wait",
    "stopped": "bad",
    "failed": "bad",
}
RESUMABLE = frozenset({"cancelled", "stopped", "failed"})


@dataclass(frozen=True, slots=True)
class Standing:
    """One operation and what follows from it."""

    operation: Operation
    verb: str
    tone: str
    whole: int
    """How many there are, as far as is known."""
    rate: float
    """Done per second, over its whole time."""
    left: float | None
    """Seconds until it ends, if it goes on like that."""
    took: float | None
    now: datetime
    facts: list[tuple[str, str]]
    """What was asked for, by whom, and how it is to be done."""
    canary: str
    operable: bool

    @property
    def share(self) -> float:
        """Looked at, of all, in percent."""
        return 100 * self.operation.progress.looked_at / self.whole if self.whole else 0.0

    @property
    def resumable(self) -> bool:
        """Whether it can go on."""
        return self.operation.state in RESUMABLE


def standing(operation: Operation, now: datetime, operable: bool) -> Standing:
    """An operation at a moment."""
    progress = operation.progress
    took = _took(operation, now)
    rate = progress.looked_at / took if took else 0.0
    rest = (progress.expected or 0) - progress.looked_at
    steady = operation.request.options.canary is None or operation.stand.cleared
    known = operation.state == "running" and steady and progress.exact and rate > 0 and rest > 0
    return Standing(
        operation=operation,
        verb=VERBS.get(operation.kind, "Remove consumer"),
        tone=TONES[operation.state],
        whole=max(progress.expected or 0, progress.looked_at),
        rate=rate,
        left=rest / rate if known else None,
        took=took,
        now=now,
        facts=_facts(operation),
        canary=_canary(operation),
        operable=operable,
    )


def _took(operation: Operation, now: datetime) -> float | None:
    if operation.started_at is None:
        return None
    return max(((operation.ended_at or now) - operation.started_at) / timedelta(seconds=1), 0.001)


def _facts(operation: Operation) -> list[tuple[str, str]]:
    asked = [("by", operation.actor), ("at", moment(operation.created_at))]
    return [*asked, *_meant(operation), *_how(operation), ("operation", operation.id)]


def _meant(operation: Operation) -> list[tuple[str, str]]:
    wanted = operation.request.filter
    if wanted is None:
        return [("items", f"{len(operation.request.items):,}")]
    said = wanted.to_json()
    kinds = ", ".join(said.pop("kinds"))
    words = [
        (NAMES.get(name, name), reason_word(text) if name == "reason" else text)
        for name, text in said.items()
    ]
    return [*words, ("kind", kinds)]


def _how(operation: Operation) -> list[tuple[str, str]]:
    options, canary = operation.request.options, operation.request.options.canary
    tried = ""
    if canary is not None:
        patience = format_duration(canary.patience)
        tried = f"{canary.size:,} first; {canary.share:.0%} must succeed within {patience}"
    said = {
        "rate": f"at most {options.rate:g} a second" if options.rate else "",
        "canary": tried,
        "only": "those that used up their attempts" if options.only_exhausted else "",
        "patch": f"{len(options.patch)} steps" if options.patch else "",
    }
    return [(name, words) for name, words in said.items() if words]


def _canary(operation: Operation) -> str:
    """What its canary does now; empty where there is none, or it is over."""
    stand, canary = operation.stand, operation.request.options.canary
    if canary is None or not operation.active:
        return ""
    if stand.cleared:
        return "The canary is over; the rest follows."
    if stand.tried is not None:
        return f"Waits until its canary of {len(stand.trying):,} has ended."
    return "Begins with its canary."
