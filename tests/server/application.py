"""The application in this process, on a real store: asked without a network, under any address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import httpx
from fastapi import FastAPI

from holdfast.bus.client import Bus
from holdfast.config.config import Config
from holdfast.model.scopes import scope_of
from holdfast.server.app import create_app
from holdfast.server.auth.guard import COOKIE
from holdfast.server.auth.tokens import Tokens
from holdfast.server.pipeline_port import PipelinePort
from holdfast.server.supervisor import Supervisor
from holdfast.server.system import System, create_system


@dataclass
class Application:
    """What a test can use."""

    app: FastAPI
    system: System
    client: httpx.AsyncClient
    issued: dict[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> Tokens:
        return self.system.tokens

    async def token(
        self,
        kind: str,
        channel: str | None = None,
        consumer: str | None = None,
        lifetime: timedelta | None = None,
    ) -> str:
        """The text of a new token."""
        issued = await self.tokens.create(scope_of(kind, channel, consumer), lifetime=lifetime)
        return issued.text

    async def bearer(self, *scope: str) -> dict[str, str]:
        """The header of a new token."""
        return {"Authorization": f"Bearer {await self.token(*scope)}"}

    async def sign_in(self, *scope: str) -> str:
        """Begin a session with a new token, as a browser would; returns the token's text."""
        text = await self.token(*scope)
        self.client.cookies.clear()
        answer = await self.client.post("/login", data={"token": text}, headers=self.form)
        assert answer.status_code == 303, answer.text
        return text

    async def session(self, *scope: str) -> dict[str, str]:
        """The header of a session that a new token has begun."""
        return {"Cookie": f"{COOKIE}={await self.system.sessions.begin(await self.token(*scope))}"}

    @property
    def form(self) -> dict[str, str]:
        """The headers of a form that is sent from a page of this server."""
        base = self.client.base_url
        return {"Origin": f"{base.scheme}://{base.netloc.decode()}"}


@asynccontextmanager
async def application(
    bus: Bus, *, local: bool = True, pipeline: PipelinePort | None = None, **server: object
) -> AsyncIterator[Application]:
    """An application on this bus; `server` is that section of the configuration. A `local` one needs no
    token, unless `server` says so."""
    config = Config.model_validate({"server": {"open": local, **server}})
    known = create_system(bus, Supervisor(), config, pipeline=pipeline)
    app = create_app(known)
    transport = httpx.ASGITransport(app)
    base = "http://localhost" if local else "http://holdfast.example"
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=30) as client:
        yield Application(app, known, client)


def problem(answer: httpx.Response, status: int) -> dict[str, object]:
    """The problem of an answer that must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = answer.json()
    assert body["status"] == status
    assert set(body) >= {"type", "title", "status", "detail"}
    assert "Traceback" not in answer.text
    return body
