"""Confirmation: what an action would do, shown before it is done; a dialog, or a page of its own."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.items import Item
from holdfast.deadletters.operations import Preview
from holdfast.model.errors import InvalidInput
from holdfast.server.api.operations import permit
from holdfast.server.auth.caller import Caller
from holdfast.server.pages.forms import KINDS, FormFields, OperationForm, agreed_preview
from holdfast.server.pages.layout import PageOperatesFiltered, PageRoute, Viewer, page
from holdfast.server.system import Known, System

LONGEST_LINE = 2_000
VERBS = {"requeue": "Requeue", "redrive": "Redrive", "patch": "Patch", "purge": "Purge", "delete": "Delete"}
WORDS = {
    "requeue": "Ready again at once, with fresh attempts.",
    "redrive": "Ready again with care: a few first, and the rest at a rate, if enough of the few succeed.",
    "patch": "The data is changed for this consumer, then it is ready again. The log keeps the original.",
    "purge": "Removed for good. A record of the purge stays as long as the history.",
    "delete": "Removed for good. A record of it stays as long as the history.",
}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class Diff:
    """What a patch changes of one item."""

    item: str
    lines: list[DiffLine]


@dataclass(frozen=True, slots=True)
class ConfirmView:
    """Everything that is shown before somebody agrees to an action."""

    form: OperationForm
    verb: str
    words: str
    count: int
    exact: bool
    sample: list[Item]
    diffs: list[Diff]
    hidden: list[tuple[str, str]]
    """The hidden fields of the form that agrees."""
    everything: bool
    """Whether a whole kind of dead letters is meant."""
    error: str = ""

    @property
    def bad(self) -> bool:
        """Whether it cannot be undone."""
        return self.form.act in ("purge", "delete")

    @property
    def kinds(self) -> str:
        """What a filter that names no kind means, or the kind that it names."""
        return KINDS.get(self.form.filter_form.given.get("letters", "job"), "dead letters")

    @property
    def jobs(self) -> bool:
        """Whether jobs are meant, and nothing else: only they can be tried first, or be out of attempts."""
        filter_form = self.form.filter_form
        chosen = all(item.startswith("job:") for item in filter_form.items)
        return chosen and filter_form.given.get("letters", "job") == "job"

    @property
    def agreeable(self) -> bool:
        """Whether there is something to agree to."""
        return self.form.written and self.count > 0 and not self.error


def confirm_view(form: OperationForm, preview: Preview, error: str = "") -> ConfirmView:
    """What is shown of a preview."""
    return ConfirmView(
        form=form,
        verb=VERBS[form.act],
        words=WORDS[form.act],
        count=preview.count,
        exact=preview.exact,
        sample=preview.sample,
        diffs=[Diff(each.item, diff_lines(each.diff)) for each in preview.changes],
        hidden=_hidden(form, preview),
        everything=not form.filter_form.items
        and form.filter_form.filter().excludes_nothing(max(preview.seen)),
        error=error,
    )


def diff_lines(diff: str) -> list[DiffLine]:
    """A diff's lines without its two titles; each has the tone of its first letter."""
    tones = {"+": "added", "-": "removed", "@": "place"}
    return [DiffLine(line[:LONGEST_LINE], tones.get(line[:1], "")) for line in diff.splitlines()[2:]]


def _hidden(form: OperationForm, preview: Preview) -> list[tuple[str, str]]:
    carried = {
        "act": form.act,
        "count": str(preview.count),
        "exact": "yes" if preview.exact else "",
        "seen": " ".join(each.isoformat() for each in preview.seen),
        "patch": form.options.get("patch", ""),
        "only_exhausted": form.options.get("only_exhausted", ""),
    }
    if len(form.filter_form.items) == 1 and preview.changes:
        carried["digest"] = preview.changes[0].digest
    return [*form.filter_form.fields, *((name, text) for name, text in carried.items() if text)]


@router.get("/deadletters/ask")
async def ask(request: Request, system: Known, viewer: PageOperatesFiltered) -> Response:
    """What an action would do."""
    return await _preview(request, system, viewer, request.query_params)


@router.post("/deadletters/ask")
async def ask_again(request: Request, system: Known, viewer: PageOperatesFiltered) -> Response:
    """The same for what is too long for an address: a patch."""
    return await _preview(request, system, viewer, await _fields(request))


@router.post("/deadletters/do")
async def do(request: Request, system: Known, viewer: PageOperatesFiltered) -> Response:
    """Do what was agreed to: an operation. What died after it was shown is not meant."""
    given = await _fields(request)
    form = OperationForm.of(given)
    asked = form.request(everything=bool(given.get("all")), digest=given.get("digest") or None)
    await permit(system, viewer.caller, asked)
    operation = await system.operations.ask(
        asked, viewer.caller.actor, viewer.caller.scopes, preview=agreed_preview(given)
    )
    return RedirectResponse(f"/operations/{operation.id}", 303)


async def _preview(request: Request, system: System, viewer: Viewer, given: FormFields) -> Response:
    form = OperationForm.of(given)
    with system.searches.take(viewer.caller.actor):
        view = await _preview_view(system, viewer.caller, form, exact=bool(given.get("exactly")))
    return page(request, "confirm.html", viewer, status=400 if view.error else 200, view=view)


async def _preview_view(system: System, caller: Caller, form: OperationForm, *, exact: bool) -> ConfirmView:
    """What is shown. A patch that does not fit is reported in its form, whose other fields stay."""
    plain = form.plain().request(everything=True)
    await permit(system, caller, plain)
    try:
        asked = form.request(everything=True) if form.written else plain
        return confirm_view(form, await system.operations.preview(asked, caller.scopes, exact=exact))
    except InvalidInput as refused:
        if form.act != "patch":
            raise
        return confirm_view(
            form, await system.operations.preview(plain, caller.scopes, exact=exact), str(refused)
        )


async def _fields(request: Request) -> FormFields:
    found = await request.form()
    return FormFields([(name, str(text)) for name, text in found.multi_items()])
