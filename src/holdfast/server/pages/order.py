"""An order: what a form asks to be done with dead letters. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Self, cast, get_args

from holdfast.deadletters.operation import Act, Canary, Options, Request
from holdfast.deadletters.operations import Preview
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.server.pages.wanted import Given, Wanted, time_of

OPTIONS = ("rate", "canary", "share", "patience", "only_exhausted", "patch")


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for, as it was written."""

    act: Act
    wanted: Wanted
    options: dict[str, str]

    @classmethod
    def of(cls, given: Given) -> Self:
        """From a query or a form; `InvalidInput` where it names nothing that can be done."""
        act = given.get("act", "")
        if act not in get_args(Act) or act == "remove_consumer":
            raise InvalidInput(f"{act!r} cannot be done with dead letters")
        said = {name: given.get(name, "").replace("\r\n", "\n").strip() for name in OPTIONS}
        return cls(cast(Act, act), Wanted.of(given), {name: text for name, text in said.items() if text})

    def request(self, *, everything: bool, digest: str | None = None) -> Request:
        """The request; `everything` says that an empty filter is meant."""
        given, wanted = self.options, self.wanted
        options = Options(
            rate=_number("rate", given["rate"]) if "rate" in given else None,
            canary=_canary(given) if "canary" in given else None,
            only_exhausted="only_exhausted" in given,
            patch=_patch(given.get("patch")),
            digest=digest,
        )
        chosen = None if wanted.items else wanted.filter()
        return Request(self.act, chosen, wanted.items, options, all=everything)

    def plain(self) -> Self:
        """The same dead letters without a patch: how many they are does not depend on it."""
        return replace(self, act="requeue", options={}) if self.act == "patch" else self

    @property
    def written(self) -> bool:
        """Whether nothing is missing that must be shown before it is agreed to."""
        return self.act != "patch" or "patch" in self.options


def agreed(given: Given) -> Preview | None:
    """What somebody saw before they agreed; None where the form does not tell."""
    if not given.get("seen"):
        return None
    seen = tuple(time_of("seen", each) for each in given["seen"].split())
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
