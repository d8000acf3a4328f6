"""Operations: what was asked for, how far it is, and how it ended; live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.operation import Operation
from holdfast.model.errors import NotFound
from holdfast.server.api.operations import listed, mine, permit
from holdfast.server.auth.caller import Caller
from holdfast.server.context import Known, System
from holdfast.server.pages.house import PageRoute, page, part
from holdfast.server.pages.live import LivePage
from holdfast.server.pages.standing import Standing, standing
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.watch import Watch
from holdfast.server.parameters import After, OperationId
from holdfast.server.refusals import Forbidden

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Reads = Annotated[Visit, visits("read", filtered=True)]
Operates = Annotated[Visit, visits("operate", filtered=True)]
LISTED = 50
EVERY = 0.5


@router.get("/operations")
async def operations(request: Request, system: Known, visit: Reads, after: After = None) -> Response:
    """The latest first, live; older ones as they are now."""
    rows, goes_on = await _listed(system, visit.caller, after)
    return page(request, "operations.html", visit, rows=rows, after=goes_on, live=after is None)


@router.get("/live/operations")
async def operations_live(request: Request, system: Known, visit: Reads) -> Response:
    """The same, with every look."""
    watch: Watch = request.app.state.watch

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(watch.views()) as views:
            async for _ in views:
                rows, goes_on = await _listed(system, visit.caller, None)
                yield part("operations_live.html", rows=rows, after=goes_on, live=True)

    return LivePage(system, visit.caller, pieces())


@router.get("/operations/{operation}")
async def operation_page(request: Request, operation: OperationId, system: Known, visit: Reads) -> Response:
    """One of them."""
    return page(request, "operation.html", visit, view=await _one(system, visit, operation))


@router.get("/live/operations/{operation}")
async def operation_live(operation: OperationId, system: Known, visit: Reads) -> Response:
    """The same until it has ended."""
    first = await _one(system, visit, operation)

    async def pieces() -> AsyncGenerator[str, None]:
        view = first
        yield part("operation_live.html", view=view, csrf=visit.csrf)
        while view.operation.active:
            await asyncio.sleep(EVERY)
            view = await _one(system, visit, operation)
            yield part("operation_live.html", view=view, csrf=visit.csrf)

    return LivePage(system, visit.caller, pieces())


@router.post("/operations/{operation}/cancel")
async def cancel(operation: OperationId, system: Known, visit: Operates) -> Response:
    """Begin nothing more."""
    await permit(system, visit.caller, (await mine(system, visit.caller, operation)).request)
    await system.operations.cancel(operation, visit.caller.actor)
    return RedirectResponse(f"/operations/{operation}", 303)


@router.post("/operations/{operation}/resume")
async def resume(operation: OperationId, system: Known, visit: Operates) -> Response:
    """Go on where it was."""
    await permit(system, visit.caller, (await mine(system, visit.caller, operation)).request)
    await system.operations.resume(operation, visit.caller.actor, visit.caller.scopes)
    return RedirectResponse(f"/operations/{operation}", 303)


async def _one(system: System, visit: Visit, operation: str) -> Standing:
    found = await mine(system, visit.caller, operation)
    now = await (await system.operations.first()).now()
    return standing(found, now, await _operable(system, visit.caller, found))


async def _listed(system: System, caller: Caller, after: str | None) -> tuple[list[Standing], str | None]:
    found, goes_on = await listed(system, caller, LISTED, after)
    now = await (await system.operations.first()).now()
    return [standing(each, now, operable=False) for each in found], goes_on


async def _operable(system: System, caller: Caller, operation: Operation) -> bool:
    try:
        await permit(system, caller, operation.request)
    except (Forbidden, NotFound):
        return False
    return True
