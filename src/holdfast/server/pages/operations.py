"""Operations: what was asked for, how far it is, and how it ended; live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.operation import Operation
from holdfast.model.duration import format_duration
from holdfast.model.errors import NotFound
from holdfast.server.api.models import After, OperationId
from holdfast.server.api.operations import listed, mine, permit
from holdfast.server.auth.caller import Caller
from holdfast.server.errors import Forbidden
from holdfast.server.pages.confirm import VERBS
from holdfast.server.pages.formatting import moment
from holdfast.server.pages.forms import NAMES, reason_text
from holdfast.server.pages.layout import (
    PageOperatesFiltered,
    PageReadsFiltered,
    PageRoute,
    Viewer,
    page,
    render,
)
from holdfast.server.pages.live import LivePage, SnapshotService
from holdfast.server.system import Known, System

router = APIRouter(route_class=PageRoute, include_in_schema=False)

TONES = {
    "waiting": "calm",
    "running": "flow",
    "done": "good",
    "cancelled": "wait",
    "stopped": "bad",
    "failed": "bad",
}
_ON_CONSUMERS = {"remove_consumer": "Remove consumer", "empty_consumer": "Empty consumer"}
RESUMABLE = frozenset({"cancelled", "stopped", "failed"})
LISTED = 50
EVERY = 0.5


@dataclass(frozen=True, slots=True)
class OperationView:
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


def operation_view(operation: Operation, now: datetime, operable: bool) -> OperationView:
    """What the page shows of an operation at this time."""
    progress = operation.progress
    took = _took(operation, now)
    rate = progress.looked_at / took if took else 0.0
    rest = (progress.expected or 0) - progress.looked_at
    steady = operation.request.options.canary is None or operation.checkpoint.cleared
    known = operation.state == "running" and steady and progress.exact and rate > 0 and rest > 0
    return OperationView(
        operation=operation,
        verb=(VERBS | _ON_CONSUMERS)[operation.kind],
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
    return [*asked, *_scope(operation), *_how(operation), ("operation", operation.id)]


def _scope(operation: Operation) -> list[tuple[str, str]]:
    chosen = operation.request.filter
    if chosen is None:
        return [("items", f"{len(operation.request.items):,}")]
    said = chosen.to_json()
    kinds = ", ".join(said.pop("kinds"))
    words = [
        (NAMES.get(name, name), reason_text(text) if name == "reason" else text)
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
    checkpoint, canary = operation.checkpoint, operation.request.options.canary
    if canary is None or not operation.active:
        return ""
    if checkpoint.cleared:
        return "The canary is over; the rest follows."
    if checkpoint.tried is not None:
        return f"Waits until its canary of {len(checkpoint.trying):,} has ended."
    return "Begins with its canary."


@router.get("/operations")
async def operations(
    request: Request, system: Known, viewer: PageReadsFiltered, after: After = None
) -> Response:
    """The latest first, live; older ones as they are now."""
    rows, next_page = await _page_of(system, viewer.caller, after)
    return page(request, "operations.html", viewer, rows=rows, after=next_page, live=after is None)


@router.get("/live/operations")
async def operations_live(request: Request, system: Known, viewer: PageReadsFiltered) -> Response:
    """The same, with every snapshot."""
    snapshots: SnapshotService = request.app.state.snapshots

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(snapshots.stream()) as stream:
            async for _ in stream:
                rows, next_page = await _page_of(system, viewer.caller, None)
                yield render("operations_live.html", rows=rows, after=next_page, live=True)

    return LivePage(system, viewer.caller, pieces())


@router.get("/operations/{operation}")
async def operation_page(
    request: Request, operation: OperationId, system: Known, viewer: PageReadsFiltered
) -> Response:
    """One of them."""
    return page(request, "operation.html", viewer, view=await _one(system, viewer, operation))


@router.get("/live/operations/{operation}")
async def operation_live(operation: OperationId, system: Known, viewer: PageReadsFiltered) -> Response:
    """The same until it has ended."""
    first = await _one(system, viewer, operation)

    async def pieces() -> AsyncGenerator[str, None]:
        view = first
        yield render("operation_live.html", view=view, csrf=viewer.csrf)
        while view.operation.active:
            await asyncio.sleep(EVERY)
            view = await _one(system, viewer, operation)
            yield render("operation_live.html", view=view, csrf=viewer.csrf)

    return LivePage(system, viewer.caller, pieces())


@router.post("/operations/{operation}/cancel")
async def cancel(operation: OperationId, system: Known, viewer: PageOperatesFiltered) -> Response:
    """Begin nothing more."""
    await permit(system, viewer.caller, (await mine(system, viewer.caller, operation)).request)
    await system.operations.cancel(operation, viewer.caller.actor)
    return RedirectResponse(f"/operations/{operation}", 303)


@router.post("/operations/{operation}/resume")
async def resume(operation: OperationId, system: Known, viewer: PageOperatesFiltered) -> Response:
    """Go on where it was."""
    await permit(system, viewer.caller, (await mine(system, viewer.caller, operation)).request)
    await system.operations.resume(operation, viewer.caller.actor, viewer.caller.scopes)
    return RedirectResponse(f"/operations/{operation}", 303)


async def _one(system: System, viewer: Viewer, operation: str) -> OperationView:
    found = await mine(system, viewer.caller, operation)
    now = await (await system.operations.first()).now()
    return operation_view(found, now, await _operable(system, viewer.caller, found))


async def _page_of(
    system: System, caller: Caller, after: str | None
) -> tuple[list[OperationView], str | None]:
    found, next_page = await listed(system, caller, LISTED, after)
    now = await (await system.operations.first()).now()
    return [operation_view(each, now, operable=False) for each in found], next_page


async def _operable(system: System, caller: Caller, operation: Operation) -> bool:
    try:
        await permit(system, caller, operation.request)
    except (Forbidden, NotFound):
        return False
    return True
