"""Signed requests: one signature, one request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta

import httpx
import pytest
from application import Application, application, problem
from fastapi import Body, Depends

import holdfast
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import Router, needs
from holdfast.server.auth.signing import Signature, Signed, digest, holds, sign
from holdfast.server.services import ExpiryService

ROUTE = "/signed/orders"


def add_route(found: Application) -> None:
    """A route that answers to two methods and takes a body."""
    router, need = Router(), Depends(needs("operate"))

    @router.api_route("/signed/{channel}", methods=["POST", "PUT"])
    @router.api_route("/other/{channel}", methods=["POST", "PUT"])
    async def route(caller: Caller = need, a: str = "", b: str = "", body: object = Body(None)) -> object:
        return [caller.actor, body]

    found.app.include_router(router)


@pytest.fixture
async def found(bus: holdfast.Bus) -> AsyncIterator[Application]:
    async with application(bus, local=False, require_signatures=True) as opened:
        add_route(opened)
        yield opened


def signature(text: str, time: float, request: Signed) -> str:
    """The header as docs/rest.md has it, without any code of ours."""
    _, token, secret = text.split("_", 2)
    shown = f"{time:.6f}"
    lines = ["HF1", request.method, request.path, request.query, shown]
    lines.append(hashlib.sha256(request.body).hexdigest())
    key = hashlib.sha256(secret.encode()).digest()
    made = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    return f"HF1 id={token},time={shown},signature={made}"


async def now(found: Application) -> float:
    return (await found.tokens.now()).timestamp()


async def send(found: Application, header: str, request: Signed) -> httpx.Response:
    address = request.path + (f"?{request.query}" if request.query else "")
    headers: Mapping[str, str] = {"Authorization": header, "Content-Type": "application/json"}
    return await found.client.request(request.method, address, content=request.body, headers=headers)


async def test_a_signed_request_is_accepted(found: Application) -> None:
    text = await found.token("channel", "orders")
    request = Signed("POST", ROUTE, "a=1&b=%20x", b'{"n": 1}')
    answer = await send(found, signature(text, await now(found), request), request)
    assert (answer.status_code, answer.json()) == (200, [f"token:{text.split('_')[1]}", {"n": 1}])


@pytest.mark.parametrize(
    "other",
    [
        Signed("PUT", ROUTE, "a=1", b"{}"),
        Signed("POST", "/other/orders", "a=1", b"{}"),
        Signed("POST", "/signed/order%73", "a=1", b"{}"),
        Signed("POST", ROUTE, "a=2", b"{}"),
        Signed("POST", ROUTE, "", b"{}"),
        Signed("POST", ROUTE, "a=1", b"[]"),
        Signed("POST", ROUTE, "a=1", b""),
    ],
)
async def test_a_signature_holds_for_no_other_method_path_query_or_body(
    found: Application, other: Signed
) -> None:
    text = await found.token("channel", "orders")
    header = signature(text, await now(found), Signed("POST", ROUTE, "a=1", b"{}"))
    refused = problem(await send(found, header, other), 401)
    assert "not valid for this request" in str(refused["detail"])


async def test_a_signature_holds_once(found: Application) -> None:
    text = await found.token("channel", "orders")
    request = Signed("POST", ROUTE, "", b"{}")
    header = signature(text, await now(found), request)
    assert (await send(found, header, request)).status_code == 200
    assert "used before" in str(problem(await send(found, header, request), 401)["detail"])
    again = signature(text, await now(found), request)
    assert (await send(found, again, request)).status_code == 200


@pytest.mark.parametrize(("off", "status"), [(-301, 401), (-200, 200), (290, 200), (400, 401)])
async def test_a_signature_from_another_time_is_refused(found: Application, off: float, status: int) -> None:
    text = await found.token("channel", "orders")
    request = Signed("POST", ROUTE, "", b"{}")
    answer = await send(found, signature(text, await now(found) + off, request), request)
    assert answer.status_code == status


async def test_a_signature_does_not_widen_a_scope(found: Application) -> None:
    text = await found.token("channel", "stock")
    request = Signed("POST", ROUTE, "", b"{}")
    problem(await send(found, signature(text, await now(found), request), request), 403)


async def test_a_signature_of_a_revoked_token_is_refused(found: Application) -> None:
    text = await found.token("admin")
    await found.tokens.revoke(text.split("_")[1])
    request = Signed("POST", ROUTE, "", b"{}")
    problem(await send(found, signature(text, await now(found), request), request), 401)


async def test_after_a_rotation_both_secrets_sign_for_the_overlap(
    found: Application, bus: holdfast.Bus
) -> None:
    old = await found.token("admin")
    new = (await found.tokens.rotate(old.split("_")[1], timedelta(hours=1))).text
    request = Signed("POST", ROUTE, "", b"{}")
    for text in (old, new):
        assert (await send(found, signature(text, await now(found), request), request)).status_code == 200
    await bus.partitions.all[0].backend.advance(timedelta(hours=1))
    problem(await send(found, signature(old, await now(found), request), request), 401)


async def test_where_signatures_are_required_a_bare_token_is_refused(found: Application) -> None:
    text = await found.token("admin")
    for name, value in (
        ("Authorization", f"Bearer {text}"),
        ("X-Broker-Channel-Token", text),
        ("X-Broker-Consumer-Token", text),
    ):
        refused = problem(await found.client.post(ROUTE, headers={name: value}), 401)
        assert "wants signed requests" in str(refused["detail"])


async def test_elsewhere_signatures_are_accepted_too(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        add_route(found)
        text = await found.token("admin")
        request = Signed("POST", ROUTE, "", b"{}")
        assert (await send(found, signature(text, await now(found), request), request)).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "HF1",
        "HF1 id=,time=,signature=",
        "HF1 id=0123456789abcdef,time=nan,signature=" + "0" * 64,
        "HF1 id=0123456789abcdef,time=1e9,signature=" + "0" * 64,
        "HF1 id=0123456789abcdef,time=1,signature=" + "0" * 64,
        "HF1 id=0123456789abcdef,time=1,signature=" + "0" * 64 + "\n",
    ],
)
async def test_what_is_no_signature_is_refused(found: Application, header: str) -> None:
    answer = await found.client.post(ROUTE, headers={b"Authorization": header.encode()})
    problem(answer, 401)


def test_our_own_client_side_makes_the_same_header() -> None:
    text, request = "hf_0123456789abcdef_" + "s" * 43, Signed("POST", ROUTE, "a=1", b"{}")
    key = hashlib.sha256(b"s" * 43).hexdigest()
    assert sign(request, "0123456789abcdef", key, "1.000000") == signature(text, 1.0, request)


def test_a_signature_is_compared_whole() -> None:
    request, key = Signed("GET", "/", "", b""), "00" * 32
    right = digest(request, key, "1")
    assert holds(Signature("x", "1", right), request, [key])
    assert not holds(Signature("x", "1", right[:-1] + ("0" if right[-1] != "0" else "1")), request, [key])
    assert not holds(Signature("x", "1", right), request, [])


async def test_a_signature_holds_once_on_all_servers_and_after_a_restart(each: holdfast.Bus) -> None:
    async with application(each, local=False) as found:
        add_route(found)
        text = await found.token("admin")
        request = Signed("POST", ROUTE, "", b"{}")
        header = signature(text, await now(found), request)
        assert (await send(found, header, request)).status_code == 200
    async with application(each, local=False) as other, application(each, local=False) as another:
        for server in (other, another):
            add_route(server)
            assert "used before" in str(problem(await send(server, header, request), 401)["detail"])
        fresh = signature(text, await now(other), request)
        answers = await asyncio.gather(*(send(server, fresh, request) for server in (other, another) * 3))
        assert sorted(answer.status_code for answer in answers) == [200] + [401] * 5


@pytest.mark.parametrize("off", [-200, 290])
async def test_a_used_signature_is_known_for_as_long_as_it_would_hold(
    found: Application, bus: holdfast.Bus, off: int
) -> None:
    text = await found.token("channel", "orders")
    request = Signed("POST", ROUTE, "", b"{}")
    header = signature(text, await now(found) + off, request)
    assert (await send(found, header, request)).status_code == 200
    expiry = ExpiryService([found.system.signatures])
    holds = 300 + off
    await bus.partitions.all[0].backend.advance(timedelta(seconds=holds - 60))
    assert await expiry.run_once() == 0
    assert "used before" in str(problem(await send(found, header, request), 401)["detail"])
    await bus.partitions.all[0].backend.advance(timedelta(seconds=120))
    assert await expiry.run_once() == 1
    assert "too far from now" in str(problem(await send(found, header, request), 401)["detail"])
