"""Login: sign in with a token or a single-use link, and sign out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.server.auth.guard import anybody, cookie_of, log_refusal
from holdfast.server.http import peer_address
from holdfast.server.pages.layout import PageRoute, csrf_of, forget_session, page
from holdfast.server.system import Known, System

router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(anybody)])

_BAD_TOKEN = "The token is not valid: unknown, expired or revoked."
_BAD_LINK = "The link is not valid: it was used before, or is older than ten minutes."
_NO_TOKENS = "This server takes no token: it wants a link."


@router.get("/login")
async def login_form(
    request: Request,
    system: Known,
    next: str = "/",  # noqa: A002 - the name in the address
    link: str = "",
) -> Response:
    """Ask for a token, or to use the link. The link is not used up: programs that show a preview of it, or
    check it for viruses, fetch it too."""
    return _form(request, system, next, link=link)


@router.post("/login")
async def sign_in(
    request: Request,
    system: Known,
    token: Annotated[str, Form()] = "",
    link: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002 - the name in the form
) -> Response:
    """Begin a session: its id goes into a cookie that no script can read and no other site can send."""
    if not link and system.config.server.require_signatures:
        return _form(request, system, next, wrong=_NO_TOKENS)
    secret, start = (link, system.sessions.follow) if link else (token.strip(), system.sessions.begin)
    address = peer_address(request.client)
    session = await system.logins.attempt(address, secret, lambda: start(secret))
    if session is None:
        log_refusal(system, 401, "nobody", address, "/login", "what was shown is not valid")
        return _form(request, system, next, wrong=_BAD_LINK if link else _BAD_TOKEN)
    await _end_session(request, system)
    response = RedirectResponse(_inside(next), 303)
    response.set_cookie(
        cookie_of(request),
        session,
        max_age=int(system.sessions.lifetime.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def sign_out(request: Request, system: Known) -> Response:
    """End the session, here and in the store."""
    await _end_session(request, system)
    response = RedirectResponse("/login", 303)
    forget_session(request, response)
    return response


async def _end_session(request: Request, system: System) -> None:
    held = request.cookies.get(cookie_of(request))
    if held is not None:
        await system.sessions.end(held)


def _form(
    request: Request,
    system: System,
    next: str,  # noqa: A002 - the name in the address
    *,
    link: str = "",
    wrong: str = "",
) -> Response:
    return page(
        request,
        "login.html",
        None,
        status=401 if wrong else 200,
        next=_inside(next),
        link=link,
        wrong=wrong,
        form=csrf_of(request),
        tokens=not system.config.server.require_signatures,
    )


def _inside(path: str) -> str:
    """A path of this site, whatever the address asks for."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
