"""The house: how a page is made, what it may do in a browser, and how it says that something went wrong."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from holdfast.deadletters.failed import Status
from holdfast.model.errors import HoldfastError
from holdfast.server.admission import Admitted, Bounded
from holdfast.server.auth.credentials import cookie_of
from holdfast.server.pages import words
from holdfast.server.pages.sparkline import sparkline
from holdfast.server.pages.visit import SAFE, SignIn, Visit, check_form
from holdfast.server.problems import problem
from holdfast.server.refusals import Unauthorized, UnsupportedMediaType

HERE = Path(__file__).parent.parent
STATIC = HERE / "static"
FORM, FIELDS = 1 << 20, 2_000
"""The largest form, and the most fields in one: a thousand dead letters can be chosen."""
NAVIGATION = (
    ("Overview", "/"),
    ("Channels", "/channels"),
    ("Dead letters", "/deadletters"),
    ("Pipeline", "/pipeline"),
    ("Query", "/query"),
    ("Trace", "/trace"),
    ("Operations", "/operations"),
    ("Audit", "/audit"),
)
NOTICES = {name: f"It is {name} now." for name in (*get_args(Status), "paused", "resumed")}
"""What an address can have a page say: nobody else's words."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}

templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    finalize=words.visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters |= {
    "count": words.count,
    "number": words.number,
    "rate": words.rate,
    "size": words.size,
    "span": words.span,
    "moment": words.moment,
    "sparkline": sparkline,
}
templates.globals |= {
    "ago": words.ago,
    "some": words.some,
    "navigation": NAVIGATION,
    "version": version("holdfast"),
}


def part(template: str, **context: Any) -> str:
    """A piece of a page."""
    return templates.get_template(template).render(**context)


def page(
    request: Request, template: str, visit: Visit | None, *, status: int = 200, **context: Any
) -> HTMLResponse:
    """A whole page for somebody."""
    first = "/" + request.url.path.split("/")[1]
    whole = part(
        template,
        here=first,
        caller=visit.caller.actor if visit else None,
        csrf=visit.csrf if visit else "",
        signed_in=visit is not None and visit.signed_in,
        visit=visit,
        notice=NOTICES.get(request.query_params.get("notice", "")),
        **context,
    )
    return HTMLResponse(whole, status, HEADERS)


def forget_session(request: Request, answer: Response) -> None:
    """Have the browser drop its cookie."""
    answer.delete_cookie(cookie_of(request), secure=request.url.scheme == "https")


class PageRoute(Admitted):
    """A route whose errors are pages, and whose forms are checked before anything else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await serve(request)
            except Unauthorized as error:
                live = request.url.path.startswith("/live/")  # a stream cannot go to the door; its page does
                answer = problem(error if live else SignIn(_back(request)), request.scope)
                forget_session(request, answer)  # it was not valid, or there was none
                return answer
            except (HoldfastError, RequestValidationError) as error:
                return _went_wrong(request, error)

        return handle

    async def prepare(self, request: Bounded) -> None:
        """Read a form, and check where it is from."""
        if request.method not in SAFE:
            if "multipart" in request.headers.get("content-type", ""):
                raise UnsupportedMediaType("a form in parts is not read here; send it URL-encoded")
            await request.read_form(FORM, FIELDS)
            await check_form(request)


def _back(request: Request) -> str:
    """Where to go after signing in: what was asked for, unless it was a form."""
    if request.method not in SAFE:
        return "/"
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def _went_wrong(request: Request, error: Exception) -> Response:
    answer = problem(error, request.scope)
    told = orjson.loads(answer.body)
    shown = page(
        request, "wrong.html", None, status=answer.status_code, title=told["title"], detail=told["detail"]
    )
    if "Retry-After" in answer.headers:
        shown.headers["Retry-After"] = answer.headers["Retry-After"]
    return shown
