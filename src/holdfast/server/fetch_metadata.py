"""Fetch metadata: what a browser says about where a request comes from. Other sites get nothing from us, and
cannot even see a difference between what is there and what is not."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.model.errors import InvalidInput
from holdfast.server.refusals import CrossSite

OURS = frozenset({"same-origin", "none"})
"""`none` is a person's own doing: an address that was typed, a bookmark."""


class FetchMetadata:
    """The middleware that refuses what pages of other sites send, before anybody looks at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_site(scope["method"], Headers(scope=scope))
        await self._app(scope, receive, send)


def check_site(method: str, headers: Headers) -> None:
    """Raise `CrossSite` where a page of another origin asks; another port of this host is another origin.

    A link to us may be followed from anywhere: what a whole tab then shows, the page before it cannot see.
    Browsers leave the metadata out where there is no TLS and the host is another machine: then `Origin`
    decides. Programs send neither.
    """
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    own = origin is None or _netloc(origin) == headers.get("Host", "").lower()
    if own if site is None else site in OURS or _is_navigation(method, headers):
        return
    raise CrossSite(
        "this was sent by a page of another site; only its own pages and programs can use this server"
    )


def _is_navigation(method: str, headers: Headers) -> bool:
    mode, goal = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    return (method, mode, goal) == ("GET", "navigate", "document")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        raise InvalidInput(f"Origin {origin[:100]!r} is no origin; send scheme, host and port") from None
