"""Asking: what an act would do, shown before it is done; a dialog, or a page of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.items import Item
from holdfast.deadletters.operations import Preview
from holdfast.model.errors import InvalidInput
from holdfast.server.api.operations import permit
from holdfast.server.auth.caller import Caller
from holdfast.server.context import Known, System
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.order import Order, agreed
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.wanted import Given

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Operates = Annotated[Visit, visits("operate", filtered=True)]
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
    error: str = ""

    @property
    def bad(self) -> bool:
        """Whether it cannot be undone."""
        return self.order.act in ("purge", "delete")

    @property
    def everything(self) -> bool:
        """Whether an empty filter is meant."""
        return not self.order.wanted.fields

    @property
    def agreeable(self) -> bool:
        """Whether there is something to agree to."""
        return self.order.written and self.count > 0 and not self.error


@router.get("/deadletters/ask")
async def ask(request: Request, system: Known, visit: Operates) -> Response:
    """What an act would do."""
    return await _asked(request, system, visit, request.query_params)


@router.post("/deadletters/ask")
async def ask_again(request: Request, system: Known, visit: Operates) -> Response:
    """The same for what is too long for an address: a patch."""
    return await _asked(request, system, visit, await _form(request))


@router.post("/deadletters/do")
async def do(request: Request, system: Known, visit: Operates) -> Response:
    """Do what was agreed to: an operation. What died after it was shown is not meant."""
    given = await _form(request)
    order = Order.of(given)
    asked = order.request(everything=bool(given.get("all")), digest=given.get("digest") or None)
    await permit(system, visit.caller, asked)
    operation = await system.operations.ask(asked, visit.caller.actor, preview=agreed(given))
    return RedirectResponse(f"/operations/{operation.id}", 303)


async def _asked(request: Request, system: Known, visit: Visit, given: Given) -> Response:
    order = Order.of(given)
    question = await _question(system, visit.caller, order, exact=bool(given.get("exactly")))
    status = 422 if question.error else 200
    return page(request, "ask.html", visit, status=status, view=question)


async def _question(system: System, caller: Caller, order: Order, *, exact: bool) -> Question:
    """A patch that does not fit is told where it was written: the rest of the form stays."""
    shown = replace(order, options={name: text for name, text in order.options.items() if name != "patch"})
    if order.act == "patch":
        shown = replace(shown, act="requeue")
    plain = shown.request(everything=True)
    await permit(system, caller, plain)
    error = ""
    try:
        asked = order.request(everything=True) if order.written else plain
        preview = await system.operations.preview(asked, exact=exact)
    except InvalidInput as refused:
        if order.act != "patch" or not order.written:
            raise
        error, preview = str(refused), await system.operations.preview(plain, exact=exact)
    return question(order, preview, error)


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


async def _form(request: Request) -> Given:
    form = await request.form()
    return Given([(name, str(text)) for name, text in form.multi_items()])
