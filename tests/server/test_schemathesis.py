"""Schemathesis: whatever the OpenAPI document allows or forbids, the server answers as the document says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from running import running
from world import settle

import holdfast
from holdfast.model.scopes import ADMIN
from holdfast.server.app import bare_app
from holdfast.server.auth.tokens import Tokens

# What fits the schema may still make no sense, or meet a state in which it cannot be done: a problem with one
# of these. What does not fit is a 422, and never the answer to something that does.
SENSELESS = ["2xx", "400", "401", "403", "404", "409", "412", "413", "429"]
REJECTED = ["400", "401", "403", "404", "405", "409", "412", "413", "415", "422", "431"]
CHECKS = {
    "positive_data_acceptance": {"expected-statuses": SENSELESS},
    "negative_data_rejection": {"expected-statuses": REJECTED},
}


def described(**config: Any) -> schemathesis.BaseSchema:
    """The server's document, and how it is to be held to it."""
    loaded = schemathesis.Config.from_dict({"checks": CHECKS, **config})
    return schemathesis.openapi.from_dict(bare_app().openapi(), config=loaded)


schema = described()
# What systematically covers the document is the same each time: the many are made up.
made_up = described(phases={"coverage": {"enabled": False}})
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=100)


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A stream is sent as the text that was made up for it; what is no text is no line either."""
    text = value if isinstance(value, str) else f"no line: {value!r}"
    return text.encode(errors="surrogatepass")


@dataclass(frozen=True)
class Live:
    """A server of this process on a thread of its own, and the key to it."""

    url: str
    headers: dict[str, str]
    session: requests.Session = field(default_factory=requests.Session)
    """One connection for thousands of requests."""


@pytest.fixture(scope="module")
def live(postgres, template, admin) -> Iterator[Live]:  # type: ignore[no-untyped-def]
    """Real uvicorn, a real store with something in it, and an admin's token."""
    name = "test_schemathesis"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    started: list[Live] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with holdfast.connect(postgres.database_url(name)) as bus:
            await settle(bus)
            token = (await Tokens(bus, "gbe").create(ADMIN)).text
            async with running(bus, server={"port": 0, "open": False, "limits": {"rate": 0}}) as system:
                await system.readiness(200)
                headers = {"Authorization": f"Bearer {token}"}
                started.append(Live(str(system.client.base_url), headers))
                ready.set()
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield started[0]
    started[0].session.close()
    stop.set()
    thread.join()
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def check(case: schemathesis.Case, live: Live) -> None:
    """Send it, and compare the answer with the document. A wait for jobs that do not come is cut short."""
    if isinstance(case.body, dict) and case.body.get("wait") == "30s":
        case.body = {**case.body, "wait": "10ms"}
    case.call_and_validate(base_url=live.url, headers=live.headers, session=live.session)


@schema.parametrize()
@FEW
def test_the_server_does_what_the_document_says(case: schemathesis.Case, live: Live) -> None:
    check(case, live)


@pytest.mark.slow
@made_up.parametrize()
@MANY
@pytest.mark.timeout(600)
def test_the_server_does_what_the_document_says_many_times(case: schemathesis.Case, live: Live) -> None:
    check(case, live)
