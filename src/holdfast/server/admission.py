"""Admission: whoever may not do what a request asks for is refused before its body is read.

The framework reads and parses a body before it asks what a route demands. So every route is one of these: it
lets the caller in first, then reads the body up to its limits, and only then hands over to the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import FormData

from holdfast.server.auth.guard import Need
from holdfast.server.context import System
from holdfast.server.forms import URL_ENCODED, fields
from holdfast.server.jsonbody import Bounds, parsed
from holdfast.server.paths import route_of
from holdfast.server.problems import is_json
from holdfast.server.refusals import PayloadTooLarge
from holdfast.server.routes import demands

ITEMS = 1_000
"""The dead letters that an operation can name, wherever batches are smaller."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Bounded(Request):
    """A request whose JSON was read within the limits."""

    value: Any = None

    async def json(self) -> Any:
        """What `read_json` parsed."""
        return self.value

    async def read_json(self) -> None:
        """Read and parse the body. Its bytes are dropped: the framework only asks whether there are any."""
        body = await self.whole()
        if body:
            self.value = await parsed(body, bounds_of(self.app.state.system))
            self._body = b"parsed"

    async def read_form(self, size: int, number: int) -> None:
        """Read the body as a form of at most so many bytes and fields."""
        body = await self.whole(size)
        if body.count(b"&") > number:
            raise PayloadTooLarge(f"a form of more than {number} fields; choose fewer at once")
        encoded = self.headers.get("content-type", "").partition(";")[0].strip().lower() == URL_ENCODED
        self._form = FormData([*(await fields(body) if encoded else ())])

    async def whole(self, most: int | None = None) -> bytes:
        """The body; `PayloadTooLarge` where it is longer than this."""
        size, parts = 0, []
        async for part in self.stream():
            size += len(part)
            if most is not None and size > most:
                raise PayloadTooLarge(f"the body is over the limit of {most} bytes; send less at once")
            parts.append(part)
        self._body = b"".join(parts)
        return self._body


class Admitted(APIRoute):
    """A route that lets its callers in before it reads what they send."""

    def get_route_handler(self) -> Handler:
        serve = super().get_route_handler()

        async def handle(request: Request) -> Response:
            bounded = Bounded(request.scope, request.receive)
            await admit(bounded)
            await self.prepare(bounded)
            return await serve(bounded)

        return handle

    async def prepare(self, request: Bounded) -> None:
        """Read the body, where the route takes one."""
        takes_one = route_of(request.scope).body_field is not None
        if takes_one and is_json(request.headers.get("content-type", "")):
            await request.read_json()


class Router(APIRouter):
    """A router of such routes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"route_class": Admitted, **options})


async def admit(request: Request) -> None:
    """Raise what the guard raises where the caller may not ask this route."""
    for need in demands(route_of(request.scope).dependant):
        if isinstance(need, Need):
            await need.admit(request, request.app.state.system)


def bounds_of(system: System) -> Bounds:
    """How much JSON the configuration lets in."""
    limits = system.config.server.limits
    return Bounds(limits.depth, limits.values, max(limits.batch, ITEMS))
