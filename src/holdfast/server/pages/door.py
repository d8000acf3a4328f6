"""The door: sign in with a token, and out again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.server.auth.credentials import COOKIE
from holdfast.server.auth.guard import anybody
from holdfast.server.context import Known
from holdfast.server.pages.house import PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(anybody)])


@router.get("/login")
async def door(request: Request, next: str = "/") -> Response:  # noqa: A002 - the name in the address
    """Ask for a token."""
    return page(request, "login.html", None, next=_inside(next), wrong=False)


@router.post("/login")
async def sign_in(
    request: Request,
    system: Known,
    token: Annotated[str, Form()],
    next: Annotated[str, Form()] = "/",  # noqa: A002 - the name in the form
) -> Response:
    """Keep a valid token in a cookie that no script can read and no other site can send."""
    if await system.tokens.verify(token.strip()) is None:
        return page(request, "login.html", None, status=401, next=_inside(next), wrong=True)
    answer = RedirectResponse(_inside(next), 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token.strip(), httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
async def sign_out() -> Response:
    """Forget the token."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


def _inside(path: str) -> str:
    """A path of this site, whatever the address asks for."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
