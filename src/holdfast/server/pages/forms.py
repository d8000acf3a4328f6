"""Forms: which dead letters an address or a form means, and what it asks to be done with them. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self, cast, get_args
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict

from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import ON_CONSUMERS, Canary, OperationKind, OperationOptions, Request
from holdfast.deadletters.operations import Preview
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.job import Reason
from holdfast.model.scopes import Verb
from holdfast.server.auth.caller import Caller

FormFields = ImmutableMultiDict[str, str]
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
OPTIONS = ("rate", "canary", "share", "patience", "only_exhausted", "patch")


@dataclass(frozen=True, slots=True)
class FilterForm:
    """A filter and items, as they were written."""

    given: dict[str, str]
    """What the filter says, by the names of addresses."""
    items: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: FormFields) -> Self:
        """From a query or a form; what is empty says nothing."""
        said = {name: given[name].strip() for name in NAMES if given.get(name)}
        items = tuple(dict.fromkeys(given.getlist("item")))
        return cls({name: text for name, text in said.items() if text}, items)

    def filter(self) -> Filter:
        """The filter; raises `InvalidInput` where it makes no sense."""
        said = {name: text for name, text in self.given.items() if name not in ("letters", "since", "until")}
        times = {
            name: parse_time(name, self.given[name]) for name in ("since", "until") if name in self.given
        }
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
        return [(NAMES[name], _text(name, text)) for name, text in self.given.items()]

    def allowed(self, caller: Caller, verb: Verb) -> bool:
        """Whether somebody may do that with everything that the filter means."""
        return caller.may(verb, self.given.get("channel"), self.given.get("consumer"))


def _text(name: str, text: str) -> str:
    if name == "letters":
        return KINDS.get(text, text)
    return reason_text(text) if name == "reason" else text


def reason_text(reason: str) -> str:
    """Why something died, in words."""
    return REASONS.get(Reason(reason), reason) if reason in list(Reason) else reason


def parse_time(name: str, text: str) -> datetime:
    """A time as people and browsers write it; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name} {text!r} is no time; write 2030-01-31T09:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OperationForm:
    """What is to be done with which dead letters, as it was written."""

    act: OperationKind
    filter_form: FilterForm
    options: dict[str, str]

    @classmethod
    def of(cls, given: FormFields) -> Self:
        """From a query or a form; raises `InvalidInput` where it names nothing that can be done."""
        act = given.get("act", "")
        if act not in get_args(OperationKind) or act in ON_CONSUMERS:
            raise InvalidInput(f"{act!r} cannot be done with dead letters")
        said = {name: given.get(name, "").replace("\r\n", "\n").strip() for name in OPTIONS}
        return cls(
            cast(OperationKind, act),
            FilterForm.of(given),
            {name: text for name, text in said.items() if text},
        )

    def request(self, *, everything: bool, digest: str | None = None) -> Request:
        """The request; `everything` says that an empty filter is meant."""
        given, filter_form = self.options, self.filter_form
        options = OperationOptions(
            rate=_number("rate", given["rate"]) if "rate" in given else None,
            canary=_canary(given) if "canary" in given else None,
            only_exhausted="only_exhausted" in given,
            patch=_patch(given.get("patch")),
            digest=digest,
        )
        chosen = None if filter_form.items else filter_form.filter()
        return Request(self.act, chosen, filter_form.items, options, all=everything)

    def plain(self) -> Self:
        """The same dead letters without a patch: how many they are does not depend on it."""
        return replace(self, act="requeue", options={}) if self.act == "patch" else self

    @property
    def written(self) -> bool:
        """Whether nothing is missing that must be shown before it is agreed to."""
        return self.act != "patch" or "patch" in self.options


def agreed_preview(given: FormFields) -> Preview | None:
    """What somebody saw before they agreed; None where the form does not say."""
    if not given.get("seen"):
        return None
    seen = tuple(parse_time("seen", each) for each in given["seen"].split())
    return Preview(int(_number("count", given.get("count", ""))), bool(given.get("exact")), [], [], seen)


def _canary(given: dict[str, str]) -> Canary:
    share = _number("share", given.get("share", "90")) / 100
    return Canary(
        int(_number("canary", given["canary"])),
        share,
        parse_duration(given.get("patience", "10m"), what="patience"),
    )


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"{name} {text!r} is no number")
    return value


def _patch(text: str | None) -> tuple[dict[str, Any], ...]:
    if text is None:
        return ()
    try:
        steps = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the patch is no JSON: {error}") from None
    if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps) or not steps:
        raise InvalidInput(
            'a JSON Patch is a list of steps: [{"op": "replace", "path": "/amount", "value": 1}]'
        )
    return tuple(steps)
