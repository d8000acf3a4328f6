"""Asking: what an act would do, shown before it is done; a dialog, or a page of its own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.model.errors import InvalidInput
from holdfast.server.api.operations import permit
from holdfast.server.auth.caller import Caller
from holdfast.server.context import Known, System
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.order import Order, agreed
from holdfast.server.pages.question import Question, question
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.wanted import Given

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Operates = Annotated[Visit, visits("operate", filtered=True)]


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
    operation = await system.operations.ask(
        asked, visit.caller.actor, visit.caller.scopes, preview=agreed(given)
    )
    return RedirectResponse(f"/operations/{operation.id}", 303)


async def _asked(request: Request, system: System, visit: Visit, given: Given) -> Response:
    order = Order.of(given)
    with system.searches.take(visit.caller.actor):
        view = await _question(system, visit.caller, order, exact=bool(given.get("exactly")))
    return page(request, "ask.html", visit, status=400 if view.error else 200, view=view)


async def _question(system: System, caller: Caller, order: Order, *, exact: bool) -> Question:
    """A patch that does not fit is told where it was written: the rest of the form stays."""
    plain = order.plain().request(everything=True)
    await permit(system, caller, plain)
    try:
        asked = order.request(everything=True) if order.written else plain
        return question(order, await system.operations.preview(asked, caller.scopes, exact=exact))
    except InvalidInput as refused:
        if order.act != "patch":
            raise
        return question(
            order, await system.operations.preview(plain, caller.scopes, exact=exact), str(refused)
        )


async def _form(request: Request) -> Given:
    form = await request.form()
    return Given([(name, str(text)) for name, text in form.multi_items()])
