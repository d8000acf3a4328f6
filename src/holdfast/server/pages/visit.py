"""Visits: who looks at a page, and whether a form was really sent from one of ours."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Depends
from starlette.requests import Request

from holdfast.model.scopes import Verb
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.credentials import cookie_of
from holdfast.server.auth.guard import needs
from holdfast.server.refusals import Refusal

SAFE = frozenset({"GET", "HEAD"})


class SignIn(Refusal):
    """A page that needs a token: off to the door, and back afterwards."""

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
class Visit:
    """Somebody at a page."""

    caller: Caller
    csrf: str
    signed_in: bool


def csrf_of(request: Request) -> str:
    """What a form of ours carries. It is bound to the session; nobody else can know it."""
    held = request.cookies.get(cookie_of(request), "")
    return hmac.new(held.encode(), b"holdfast form", hashlib.sha256).hexdigest() if held else ""


async def check_form(request: Request) -> None:
    """Refuse a form from elsewhere: its origin must be this site, and it must know what only we tell."""
    origin, host = request.headers.get("Origin", ""), request.headers.get("Host", "")
    # Over TLS a page of ours came over TLS too. Where a proxy that is not trusted ends it, nobody knows here.
    schemes = ("https",) if request.url.scheme == "https" else ("http", "https")
    if origin not in [f"{scheme}://{host}" for scheme in schemes]:
        raise Forged("this form was sent from another site; open the page here and send it again")
    given = str((await request.form()).get("csrf", ""))
    if not hmac.compare_digest(given.encode(), csrf_of(request).encode()):
        raise Forged("this form is from another session; reload the page and send it again")


def visits(verb: Verb, *, filtered: bool = False) -> Any:
    """A page's demand, as `needs` is a route's: `visit: Annotated[Visit, visits("read")]`."""
    need: Any = Depends(needs(verb, filtered=filtered, page=True))

    async def visit(request: Request, caller: Caller = need) -> Visit:
        return Visit(caller, csrf_of(request), cookie_of(request) in request.cookies)

    return Depends(visit)
