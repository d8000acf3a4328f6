"""Schemathesis: whatever the OpenAPI document allows or forbids, the server answers as the document says."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schema_hooks
import schemathesis
from hypothesis import HealthCheck, settings
from running import running
from world import CHANNEL, settle

import holdfast
from holdfast.model.scopes import ADMIN, scope_of
from holdfast.server.app import bare_app
from holdfast.server.auth.tokens import Tokens

CONFIG = Path(__file__).with_name("schemathesis.toml")


def described(**config: Any) -> schemathesis.BaseSchema:
    """The server's document, and how it is to be held to it."""
    loaded = schemathesis.Config.from_dict({**tomllib.loads(CONFIG.read_text()), **config})
    return schemathesis.openapi.from_dict(bare_app().openapi(), config=loaded)


@pytest.fixture(scope="module")
def covering() -> schemathesis.BaseSchema:
    """What systematically covers the document, and a little made up."""
    return described()


@pytest.fixture(scope="module")
def inventing() -> schemathesis.BaseSchema:
    """What covers the document is the same each time: this one only makes up."""
    return described(phases={"coverage": {"enabled": False}})


@pytest.fixture(autouse=True)
def _named(request: pytest.FixtureRequest) -> None:
    """Schemathesis keeps a test's name while it runs its operations, and looks where older pytests had it."""
    request.node._nodeid = request.node.nodeid


# Requests are thought up where the tests run, and not in each process that only collects them.
covered, made_up = map(schemathesis.pytest.from_fixture, ("covering", "inventing"))
FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=100)


@dataclass(frozen=True)
class Live:
    """A server of this process on a thread of its own, and the keys to it: everybody's, and one channel's."""

    url: str
    admin: dict[str, str]
    channel: dict[str, str]
    session: requests.Session = field(default_factory=requests.Session)
    """One connection for thousands of requests."""


@pytest.fixture(scope="module")
def live(postgres, template, admin) -> Iterator[Live]:  # type: ignore[no-untyped-def]
    """Real uvicorn, a real store with something in it, and two tokens."""
    name = "test_schemathesis"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    started: list[Live] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with holdfast.connect(postgres.database_url(name)) as bus:
            schema_hooks.known.update((await settle(bus)).names)
            tokens = Tokens(bus, "gbe")
            issued = [await tokens.create(each) for each in (ADMIN, scope_of("channel", CHANNEL, None))]
            headers = [{"Authorization": f"Bearer {each.text}"} for each in issued]
            async with running(bus, server={"port": 0, "open": False, "limits": {"rate": 0}}) as system:
                await system.readiness(200)
                started.append(Live(str(system.client.base_url), *headers))
                ready.set()
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield started[0]
    started[0].session.close()
    schema_hooks.known.clear()
    stop.set()
    thread.join()
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def check(case: schemathesis.Case, live: Live, headers: dict[str, str]) -> None:
    """Send it, and compare the answer with the document."""
    case.call_and_validate(base_url=live.url, headers=headers, session=live.session)


@made_up.parametrize()
@FEW
@pytest.mark.timeout(600)
def test_the_server_does_what_the_document_says(case: schemathesis.Case, live: Live) -> None:
    check(case, live, live.admin)


@made_up.parametrize()
@FEW
@pytest.mark.timeout(600)
def test_a_token_for_one_channel_gets_documented_answers_too(case: schemathesis.Case, live: Live) -> None:
    check(case, live, live.channel)


@pytest.mark.slow
@covered.parametrize()
@MANY
@pytest.mark.timeout(0)
def test_the_server_does_what_the_document_says_many_times(case: schemathesis.Case, live: Live) -> None:
    check(case, live, live.admin)
