"""Layout: how a page is made, who looks at it, whether a form was sent from it, and how it shows an error."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote

import orjson
from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from holdfast.deadletters.sources import Status
from holdfast.model.errors import HoldfastError
from holdfast.model.scopes import Verb
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import GuardedRoute, cookie_of, needs
from holdfast.server.bodies import BoundedRequest
from holdfast.server.errors import Refusal, Unauthorized, UnsupportedMediaType
from holdfast.server.pages import formatting
from holdfast.server.problems import problem

SAFE = frozenset({"GET", "HEAD"})
HERE = Path(__file__).parent.parent
STATIC = HERE / "static"
FORM, FIELDS = 1 << 20, 2_000
"""The largest form, and the most fields in one: a thousand dead letters can be chosen."""
NAVIGATION = (
    ("Overview", "/"),
    ("Channels", "/channels"),
    ("Schedules", "/schedules"),
    ("Dead letters", "/deadletters"),
    ("Pipeline", "/pipeline"),
    ("Query", "/query"),
    ("Trace", "/trace"),
    ("Operations", "/operations"),
    ("Audit", "/audit"),
)
DONE = ("paused", "resumed", "cancelled", "saved", "published", "removed")
NOTICES = {name: f"It is {name} now." for name in (*get_args(Status), *DONE)} | {
    "not-cancelled": "Nothing was cancelled: the job had ended, or a worker had it, meanwhile."
}
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
    finalize=formatting.visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters |= {
    "count": formatting.count,
    "number": formatting.number,
    "rate": formatting.rate,
    "size": formatting.size,
    "span": formatting.span,
    "moment": formatting.moment,
    "sparkline": formatting.sparkline,
}
templates.globals |= {
    "ago": formatting.ago,
    "some": formatting.some,
    "navigation": NAVIGATION,
    "version": version("holdfast"),
}


class SignIn(Refusal):
    """A page that needs a token: redirects to the login, which comes back afterwards."""

    status = 303

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__("this page needs a token; sign in")

    @property
    def headers(self) -> dict[str, str]:
        return {"Location": f"/login?next={quote(self._path, safe='')}"}


class Forged(Refusal):
    """A form that was not sent from one of our pages."""

    status = 403


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks at a page."""

    caller: Caller
    csrf: str
    signed_in: bool


def csrf_of(request: Request) -> str:
    """The CSRF token that a form of ours carries. It is bound to the session; nobody else can know it."""
    held = request.cookies.get(cookie_of(request), "")
    return hmac.new(held.encode(), b"holdfast form", hashlib.sha256).hexdigest() if held else ""


async def check_form(request: Request) -> None:
    """Raise `Forged` for a form from elsewhere: wrong `Origin`, or without the session's CSRF token."""
    origin, host = request.headers.get("Origin", ""), request.headers.get("Host", "")
    # Over TLS a page of ours came over TLS too. Where a proxy that is not trusted ends it, nobody knows here.
    schemes = ("https",) if request.url.scheme == "https" else ("http", "https")
    if origin not in [f"{scheme}://{host}" for scheme in schemes]:
        raise Forged("this form was sent from another site; open the page here and send it again")
    given = str((await request.form()).get("csrf", ""))
    if not hmac.compare_digest(given.encode(), csrf_of(request).encode()):
        raise Forged("this form is from another session; reload the page and send it again")


def page_needs(verb: Verb, *, filtered: bool = False) -> Any:
    """A page's demand, as `needs` is a route's."""
    need: Any = Depends(needs(verb, filtered=filtered, page=True))

    async def viewer(request: Request, caller: Caller = need) -> Viewer:
        return Viewer(caller, csrf_of(request), cookie_of(request) in request.cookies)

    return Depends(viewer)


PageReads = Annotated[Viewer, page_needs("read")]
PageReadsFiltered = Annotated[Viewer, page_needs("read", filtered=True)]
PageOperates = Annotated[Viewer, page_needs("operate")]
PageOperatesFiltered = Annotated[Viewer, page_needs("operate", filtered=True)]


def render(template: str, **context: Any) -> str:
    """A template as text."""
    return templates.get_template(template).render(**context)


def page(
    request: Request, template: str, viewer: Viewer | None, *, status: int = 200, **context: Any
) -> HTMLResponse:
    """A whole page."""
    whole = render(
        template,
        here="/" + request.url.path.split("/")[1],
        caller=viewer.caller.actor if viewer else None,
        csrf=viewer.csrf if viewer else "",
        signed_in=viewer is not None and viewer.signed_in,
        viewer=viewer,
        notice=NOTICES.get(request.query_params.get("notice", "")),
        **context,
    )
    return HTMLResponse(whole, status, HEADERS)


def forget_session(request: Request, response: Response) -> None:
    """Have the browser drop its cookie."""
    response.delete_cookie(cookie_of(request), secure=request.url.scheme == "https")


class PageRoute(GuardedRoute):
    """A route whose errors are pages, and whose forms are checked before anything else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await serve(request)
            except Unauthorized as error:
                live = request.url.path.startswith("/live/")  # a stream cannot be redirected; its page is
                response = problem(error if live else SignIn(_back(request)), request.scope)
                forget_session(request, response)  # it was not valid, or there was none
                return response
            except (HoldfastError, RequestValidationError) as error:
                return _error_page(request, error)

        return handle

    async def prepare(self, request: BoundedRequest) -> None:
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


def _error_page(request: Request, error: Exception) -> Response:
    response = problem(error, request.scope)
    body = orjson.loads(response.body)
    shown = page(
        request, "error.html", None, status=response.status_code, title=body["title"], detail=body["detail"]
    )
    if "Retry-After" in response.headers:
        shown.headers["Retry-After"] = response.headers["Retry-After"]
    return shown
