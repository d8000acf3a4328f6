"""What is wanted: the dead letters that an address or a form means, by a filter or one by one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict

from holdfast.deadletters.items import Filter
from holdfast.model.errors import InvalidInput
from holdfast.model.job import Reason
from holdfast.model.scopes import Verb
from holdfast.server.auth.caller import Caller

Given = ImmutableMultiDict[str, str]
"""What a query or a form says."""

REASONS = {
    Reason.MAX_ATTEMPTS: "out of attempts",
    Reason.CRASH_LOOP: "crash loop",
    Reason.EXPIRED: "expired",
    Reason.TERMINAL: "given up",
}
KINDS = {"job": "jobs", "ingest": "ingest records", "stream": "messages"}
NAMES = {
    "channel": "channel",
    "consumer": "consumer",
    "fingerprint": "cluster",
    "reason": "reason",
    "kind": "error class",
    "text": "error text",
    "since": "died since",
    "until": "died before",
    "letters": "kind",
}
"""What a filter can say, as addresses name it, and in words."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter and items, as they were written."""

    given: dict[str, str]
    """What the filter says, by the names of addresses."""
    items: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Given) -> Self:
        """From a query or a form; what is empty says nothing."""
        said = {name: given[name].strip() for name in NAMES if given.get(name)}
        items = tuple(dict.fromkeys(given.getlist("item")))
        return cls({name: text for name, text in said.items() if text}, items)

    def filter(self) -> Filter:
        """The filter, or `InvalidInput` where it makes no sense."""
        said = {name: text for name, text in self.given.items() if name not in ("letters", "since", "until")}
        times = {name: time_of(name, self.given[name]) for name in ("since", "until") if name in self.given}
        kinds = (self.given["letters"],) if "letters" in self.given else ()
        return Filter.of(kinds=kinds, **said, **times)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """As a form carries it."""
        return [*self.given.items(), *(("item", item) for item in self.items)]

    @property
    def special(self) -> bool:
        """Whether it says something that is seldom asked for."""
        return not self.given.keys() <= {"channel", "consumer", "reason", "text"}

    def query(self, **more: str) -> str:
        """As an address carries it; an empty text takes a name away."""
        said = {**self.given, **more}
        items = [("item", item) for item in self.items]
        return urlencode([(name, text) for name, text in said.items() if text] + items)

    def words(self) -> list[tuple[str, str]]:
        """The filter in words, for people."""
        return [(NAMES[name], _word(name, text)) for name, text in self.given.items()]

    def allowed(self, caller: Caller, verb: Verb) -> bool:
        """Whether somebody may do that with everything that the filter means."""
        return caller.may(verb, self.given.get("channel"), self.given.get("consumer"))


def _word(name: str, text: str) -> str:
    if name == "letters":
        return KINDS.get(text, text)
    return reason_word(text) if name == "reason" else text


def reason_word(reason: str) -> str:
    """Why something died, in words."""
    return REASONS.get(Reason(reason), reason) if reason in list(Reason) else reason


def time_of(name: str, text: str) -> datetime:
    """A time as people and browsers write it; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} {text!r} is no time; write 2030-01-31T09:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
