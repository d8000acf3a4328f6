"""The question: everything that is shown before somebody agrees to an act. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.deadletters.items import Item
from holdfast.deadletters.operations import Preview
from holdfast.server.pages.order import Order
from holdfast.server.pages.wanted import KINDS

LONGEST_LINE = 2_000
VERBS = {"requeue": "Requeue", "redrive": "Redrive", "patch": "Patch", "purge": "Purge", "delete": "Delete"}
WORDS = {
    "requeue": "Ready again at once, with fresh attempts.",
    "redrive": "Ready again with care: a few first, and the rest at a rate, if enough of the few succeed.",
    "patch": "The data is changed for this consumer, then it is ready again. The log keeps the original.",
    "purge": "Removed for good. A record of the purge stays as long as the history.",
    "delete": "Removed for good. A record of it stays as long as the history.",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a diff."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class Diff:
    """What a patch changes of one item."""

    item: str
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that is shown before somebody agrees."""

    order: Order
    verb: str
    words: str
    count: int
    exact: bool
    sample: list[Item]
    diffs: list[Diff]
    hidden: list[tuple[str, str]]
    """What the form that agrees carries along."""
    everything: bool
    """Whether a whole kind of dead letters is meant."""
    error: str = ""

    @property
    def bad(self) -> bool:
        """Whether it cannot be undone."""
        return self.order.act in ("purge", "delete")

    @property
    def kinds(self) -> str:
        """What a filter that names no kind means, or the kind that it names."""
        return KINDS.get(self.order.wanted.given.get("letters", "job"), "dead letters")

    @property
    def jobs(self) -> bool:
        """Whether jobs are meant, and nothing else: only they can be tried first, or be out of attempts."""
        wanted = self.order.wanted
        chosen = all(item.startswith("job:") for item in wanted.items)
        return chosen and wanted.given.get("letters", "job") == "job"

    @property
    def agreeable(self) -> bool:
        """Whether there is something to agree to."""
        return self.order.written and self.count > 0 and not self.error


def question(order: Order, preview: Preview, error: str = "") -> Question:
    """What is shown of a preview."""
    return Question(
        order=order,
        verb=VERBS[order.act],
        words=WORDS[order.act],
        count=preview.count,
        exact=preview.exact,
        sample=preview.sample,
        diffs=[Diff(each.item, diff_lines(each.diff)) for each in preview.changes],
        hidden=_hidden(order, preview),
        everything=not order.wanted.items and order.wanted.filter().excludes_nothing(max(preview.seen)),
        error=error,
    )


def diff_lines(diff: str) -> list[Line]:
    """A diff's lines without its two titles; each has the tone of its first letter."""
    tones = {"+": "added", "-": "removed", "@": "place"}
    return [Line(line[:LONGEST_LINE], tones.get(line[:1], "")) for line in diff.splitlines()[2:]]


def _hidden(order: Order, preview: Preview) -> list[tuple[str, str]]:
    carried = {
        "act": order.act,
        "count": str(preview.count),
        "exact": "yes" if preview.exact else "",
        "seen": " ".join(each.isoformat() for each in preview.seen),
        "patch": order.options.get("patch", ""),
        "only_exhausted": order.options.get("only_exhausted", ""),
    }
    if len(order.wanted.items) == 1 and preview.changes:
        carried["digest"] = preview.changes[0].digest
    return [*order.wanted.fields, *((name, text) for name, text in carried.items() if text)]
