"""Dead letters of worker consumers: filters, pages, counts, and clusters by the fingerprint of an error."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

from holdfast.model.event import Event
from holdfast.model.job import JobRecord

_MAX_NORMALISED = 4_096
"""Characters of an error that count: a stream's message may bring a longer one."""
_NOISE = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    # A scheme has an end: without one, every letter of a long word would begin a search to the word's end.
    (re.compile(r"(?:[a-z][a-z0-9+.-]{0,15}:/)?(?:/[^\s/'\",:;()]+){2,}"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters are meant. Everything that is set must match; an empty filter means all."""

    channel: str | None = None
    consumer: str | None = None
    reason: str | None = None
    kind: str | None = None
    """The class of the last error."""
    fingerprint: str | None = None
    since: datetime | None = None
    """Died at this time or after it."""
    until: datetime | None = None
    """Died before this time."""
    text: str | None = None
    """Part of the last error, in any case."""

    def holds(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter matches: the rule behind whatever a store's index does."""
        record, died = letter.record, letter.record.ended_at
        last = record.errors[-1] if record.errors else {}
        return (
            self.channel in (None, record.channel)
            and self.consumer in (None, record.consumer)
            and self.reason in (None, record.reason)
            and self.kind in (None, last.get("kind", ""))
            and self.fingerprint in (None, letter.fingerprint)
            and (self.since is None or (died is not None and died >= self.since))
            and (self.until is None or (died is not None and died < self.until))
            and (self.text is None or self.text.casefold() in str(last.get("error", "")).casefold())
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that died, as an operator sees it. `record.ended_at` is its time of death."""

    record: JobRecord
    fingerprint: str
    event: Event | None = None
    """Only where one was asked for: as the consumer gets it, so with the data of a patch."""
    original: bytes | None = None
    """The event's own data, where a patch replaces it for this consumer."""


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Dead letters, the latest death first, and where to go on."""

    letters: list[DeadLetter]
    after: str | None
    """None: there are no more. Set on a short or even empty page too, where the search took long enough."""


@dataclass(frozen=True, slots=True)
class DeadCount:
    """How many dead letters a consumer has for one reason."""

    channel: str
    consumer: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Dead letters of a consumer with one fingerprint, and the latest of them as the sample."""

    channel: str
    consumer: str
    fingerprint: str
    count: int
    sample: DeadLetter


@dataclass(frozen=True, slots=True)
class Drift:
    """A count that did not agree with what is there."""

    channel: str
    consumer: str
    reason: str
    counted: int
    found: int


@dataclass(frozen=True, slots=True)
class Fold:
    """What one step of folding did."""

    folded: int
    """Deltas that went into the summary; always 0 on a store whose counts need none."""
    bootstrapped: bool = False
    """Whether this was the step, once in a store's life, that counted what was there before."""
    skipped: bool = False
    """Whether the summary was fresh enough."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What one step of removing a consumer took along."""

    jobs: int
    dead: int
    history: int
    done: bool
    """Whether nothing is left of it."""


def normalise(error: str) -> str:
    """Return the error with numbers, ids, paths, addresses and quoted text replaced by placeholders.

    Takes time in proportion to the error's length, whatever it holds.
    """
    error = error[:_MAX_NORMALISED]
    for noise, placeholder in _NOISE:
        error = noise.sub(placeholder, error)
    return error.strip()[:500]


def fingerprint(kind: str, error: str) -> str:
    """Return sixteen hexadecimal digits that name the cluster of an error."""
    text = f"{kind}: {normalise(error)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
