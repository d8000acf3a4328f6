"""Sessions: how a browser gets in, what it holds, and when that ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from application import Application, application

import holdfast
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import COOKIE, SECURE_COOKIE, check_again
from holdfast.server.auth.tokens import hash_of, new_secret
from holdfast.server.errors import TooManyRequests, Unauthorized
from holdfast.server.limits import Logins
from holdfast.server.routes import routes_of
from holdfast.server.services import ExpiryService

PAGE = "/channels"


@pytest.fixture
async def found(bus: holdfast.Bus) -> AsyncIterator[Application]:
    async with application(bus, local=False) as opened:
        yield opened


def held(found: Application) -> str | None:
    """What the browser has."""
    return found.client.cookies.get(COOKIE)


async def inside(found: Application) -> bool:
    """Whether a page is shown; otherwise the browser is sent to the door, and its cookie is dropped."""
    answer = await found.client.get(PAGE)
    if answer.status_code == 200:
        return True
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fchannels")
    return False


async def follow(found: Application, code: str) -> httpx.Response:
    return await found.client.post(
        "/login", data={"link": code, "csrf": await csrf(found)}, headers=found.form
    )


async def csrf(found: Application) -> str:
    """What the form of the door carries."""
    form = await found.client.get("/login?link=x")
    [value] = re.findall(r'name="csrf" value="([^"]*)"', form.text)
    return str(value)


async def link(found: Application, *scope: str) -> str:
    text = await found.token(*scope)
    return await found.system.sessions.link(await found.tokens.valid(text.split("_")[1]))


async def test_a_browser_holds_a_session_and_not_the_token(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    async with application(each, local=False) as found:
        text = await found.sign_in("admin")
        session = held(found)
        assert session is not None
        assert session not in text
        record = await store.records.get(f"gbe.state.sessions.{hash_of(session)}")
        assert record is not None
        for secret in (session, text.split("_", 2)[2]):
            assert secret not in str(dict(record.fields))
        await store.advance(timedelta(hours=11, minutes=59))
        assert await inside(found)
        await store.advance(timedelta(minutes=1))
        assert not await inside(found)
        assert await ExpiryService(found.system.sessions.records).run_once() == 1
        assert await store.records.get(record.key) is None


async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(found: Application) -> None:
    text = await found.token("admin")
    answer = await found.client.post("/login", data={"token": text}, headers=found.form)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part in cookie
    assert "Secure" not in cookie
    assert "Domain" not in cookie


async def test_over_tls_the_cookie_is_secure_and_of_this_host(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        found.client.base_url = httpx.URL("https://holdfast.example")
        text = await found.token("admin")
        plain = {"Origin": "http://holdfast.example"}  # whoever is on the wire can answer for that one
        refused = await found.client.post("/login", data={"token": text}, headers=plain)
        assert refused.status_code == 403
        answer = await found.client.post("/login", data={"token": text}, headers=found.form)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{SECURE_COOKIE}=")
        assert "Secure" in cookie
        assert "Path=/" in cookie
        assert "Domain" not in cookie
        assert await inside(found)
        # A cookie that plain HTTP, or another host of the domain, could have set does not count.
        session = found.client.cookies[SECURE_COOKIE]
        found.client.cookies.clear()
        found.client.cookies.set(COOKIE, session)
        assert not await inside(found)


async def test_servers_on_other_ports_of_a_host_leave_its_session_alone(bus: holdfast.Bus) -> None:
    """Without TLS a browser sends its cookies to every port of the host."""
    async with application(bus, local=False) as found:
        for port in (8420, 8421):
            found.client.base_url = httpx.URL(f"http://holdfast.example:{port}")
            text = await found.token("admin")
            sent = {"token": text, "csrf": await csrf(found)}
            assert (await found.client.post("/login", data=sent, headers=found.form)).status_code == 303
        await found.tokens.revoke(text.split("_")[1])
        assert not await inside(found)
        found.client.base_url = httpx.URL("http://holdfast.example:8420")
        assert await inside(found)


async def test_a_session_ends_with_its_token_on_every_server(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found, application(bus, local=False) as other:
        text = await found.sign_in("reader")
        caller = await found.system.sessions.find(held(found) or "")
        assert caller is not None
        await other.tokens.revoke(text.split("_")[1])
        assert not await inside(found)


async def test_a_session_ends_with_the_secret_that_it_began_with(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        text = await found.sign_in("reader")
        await found.tokens.rotate(text.split("_")[1], timedelta(hours=1))
        assert await inside(found)
        await bus.partitions.all[0].backend.advance(timedelta(hours=1))
        assert not await inside(found)


async def test_signing_out_ends_the_session_in_the_store(found: Application) -> None:
    await found.sign_in("admin")
    session = held(found) or ""
    sent = {"csrf": await csrf(found)}
    assert (await found.client.post("/logout", data=sent, headers=found.form)).status_code == 303
    assert held(found) is None
    found.client.cookies.set(COOKIE, session)  # somebody has kept it
    assert not await inside(found)


async def test_signing_in_gives_a_new_id_and_ends_the_session_before(found: Application) -> None:
    """What somebody has planted in the browser is no session afterwards."""
    text = await found.sign_in("admin")
    first = held(found) or ""
    sent = {"token": text, "csrf": await csrf(found)}
    assert (await found.client.post("/login", data=sent, headers=found.form)).status_code == 303
    assert held(found) != first
    assert await found.system.sessions.find(first) is None
    found.client.cookies.clear()
    found.client.cookies.set(COOKIE, "planted")
    sent = {"token": text, "csrf": await csrf(found)}
    answer = await found.client.post("/login", data=sent, headers=found.form)
    assert "planted" not in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://[evil"}]
)
async def test_no_other_site_signs_a_browser_in(found: Application, headers: dict[str, str]) -> None:
    for data in ({"token": await found.token("admin")}, {"link": await link(found, "admin")}):
        answer = await found.client.post("/login", data=data, headers=headers)
        assert answer.status_code == (400 if headers.get("Origin") == "http://[evil" else 403)
        assert "set-cookie" not in answer.headers
    if "link" in data:  # it was not used up either
        assert (await follow(found, data["link"])).status_code == 303


async def test_what_is_no_session_gives_one_and_the_same_answer(
    found: Application, bus: holdfast.Bus
) -> None:
    """Foreign, unknown, ended and expired ones: nobody learns which."""
    texts = {name: await found.sign_in("admin") for name in ("revoked", "expired")}
    ended = {name: held(found) or "" for name in ("expired",)}
    await found.tokens.revoke(texts["expired"].split("_")[1])
    unknown = new_secret()
    answers = []
    for value in (unknown, "x", "", texts["revoked"], ended["expired"], "\u00e4", "a" * 4000):
        found.client.cookies.clear()
        headers = {b"Cookie": f"{COOKIE}={value}".encode()}
        answer = await found.client.get(PAGE, headers=headers)
        answers.append((answer.status_code, answer.text, answer.headers["location"]))
    assert len(set(answers)) == 1


async def test_what_is_no_token_gives_one_and_the_same_answer(found: Application, bus: holdfast.Bus) -> None:
    known = await found.token("admin")
    revoked = await found.token("admin")
    await found.tokens.revoke(revoked.split("_")[1])
    expired = await found.token("admin", lifetime=timedelta(seconds=1))
    await bus.partitions.all[0].backend.advance(timedelta(seconds=2))
    wrong = f"{known[:-1]}{'A' if known[-1] != 'A' else 'B'}"
    foreign = f"hf_0123456789abcdef_{new_secret()}"
    answers = set()
    for text in (revoked, expired, wrong, foreign, "hf_", "nonsense"):
        answer = await found.client.get("/api/v1/channels", headers={"Authorization": f"Bearer {text}"})
        page = await found.client.post("/login", data={"token": text}, headers=found.form)
        answers.add((answer.status_code, answer.text, page.status_code, page.text))
    assert len(answers) == 1


async def test_a_link_signs_one_browser_in_once(each: holdfast.Bus) -> None:
    async with application(each, local=False) as found, application(each, local=False) as other:
        code = await link(found, "admin")
        for _ in range(3):  # whoever only looks at it does not use it up
            shown = await found.client.get(f"/login?link={code}")
            assert shown.status_code == 200
            assert "set-cookie" not in shown.headers
        answers = await asyncio.gather(*(follow(server, code) for server in (found, other) * 3))
        assert sorted(answer.status_code for answer in answers) == [303] + [401] * 5
        assert await inside(found) != await inside(other)
        again = await follow(other, code)
        assert again.status_code == 401
        assert "it was used before, or is older than ten minutes" in again.text


async def test_a_link_ends_after_ten_minutes_and_with_its_token(
    found: Application, bus: holdfast.Bus
) -> None:
    store = bus.partitions.all[0].backend
    first, second = await link(found, "admin"), await link(found, "admin")
    for token in (await found.tokens.all())[:1]:
        await found.tokens.revoke(token.id)
    assert (await follow(found, first)).status_code == 401
    await store.advance(timedelta(minutes=10))
    assert (await follow(found, second)).status_code == 401
    assert await ExpiryService(found.system.sessions.records).run_once() == 1
    for code in ("", "x", new_secret(), "\u00e4"):
        assert (await follow(found, code)).status_code == 401


async def test_no_form_is_taken_that_is_not_from_this_session(found: Application) -> None:
    """Of all forms that there are: what another session's page carries does not count."""
    await found.sign_in("admin")
    theirs = await csrf(found)
    await found.sign_in("admin")
    assert theirs != await csrf(found)
    names = dict.fromkeys(("channel", "consumer", "failed", "act", "operation", "item", "schedule"), "x")
    forms = [each for each in routes_of(found.app) if not each.include_in_schema and "POST" in each.methods]
    assert len(forms) > 5
    for form in forms:
        for given in (theirs, "", "x"):
            sent = {"csrf": given, "sql": "SELECT 1", "paused": "true"}
            answer = await found.client.post(form.path_format.format(**names), data=sent, headers=found.form)
            assert answer.status_code == 403, form.path_format


async def test_who_guesses_tokens_has_to_wait(found: Application, caplog: pytest.LogCaptureFixture) -> None:
    """And whoever has signed in here before does not, from the same address: behind a proxy all have one."""
    known = await found.sign_in("reader")
    new = await found.token("reader")
    found.client.cookies.clear()

    async def tried(field: str, text: str) -> httpx.Response:
        return await found.client.post("/login", data={field: text}, headers=found.form)

    guesses = [await tried(("token", "link")[n % 2], f"hf_{n:016x}_{new_secret()}") for n in range(12)]
    assert [each.status_code for each in guesses] == [401] * 10 + [429] * 2
    assert guesses[-1].headers["Retry-After"] == "1"
    assert "wait for 1 s" in guesses[-1].text
    assert (await tried("token", new)).status_code == 429
    assert (await tried("token", known)).status_code == 303
    assert "refused 401: nobody from 127.0.0.1 on /login" in caplog.text


async def test_a_token_does_not_fill_the_store_with_sessions(found: Application) -> None:
    text = await found.token("reader")
    answers, sent = [], {"token": text}
    for _ in range(30):
        found.client.cookies.clear()
        answers.append(await found.client.post("/login", data=sent, headers=found.form))
    assert {each.status_code for each in answers} == {303, 429}
    assert sum(each.status_code == 303 for each in answers) <= 25


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_tries_to_sign_in_are_limited_for_an_address_and_for_all() -> None:
    clock = Clock()
    logins = Logins(clock)
    valid = {"right"}

    async def tried(address: str, secret: str) -> bool | None:
        async def begin() -> str | None:
            return "session" if secret in valid else None

        try:
            return await logins.attempt(address, secret, begin) is not None
        except TooManyRequests:
            return None

    assert [await tried("a", "wrong") for _ in range(11)] == [False] * 10 + [None]
    assert [await tried("b", "right") for _ in range(100)] == [True] * 100  # nobody waits who can sign in
    assert await tried("a", "right") is True
    valid.clear()
    assert [await tried("a", "right"), await tried("a", "right")] == [False, None]  # it was revoked
    clock.now = 1.0
    assert [await tried("a", "wrong") for _ in range(2)] == [False, None]  # a pause, and no more than that
    clock.now = 10.0
    assert [await tried(f"{n}", "wrong") for n in range(41)] == [False] * 40 + [None]
    clock.now = 10.05
    assert await tried("new", "wrong") is False


async def test_where_signatures_are_required_only_a_link_signs_in(bus: holdfast.Bus) -> None:
    async with (
        application(bus, local=False) as before,
        application(bus, local=False, require_signatures=True) as found,
    ):
        text = await before.sign_in("admin")
        found.client.cookies = before.client.cookies  # of a time when tokens could travel
        assert not await inside(found)
        found.client.cookies.clear()
        assert 'name="token"' not in (await found.client.get("/login")).text
        refused = await found.client.post("/login", data={"token": text}, headers=found.form)
        assert refused.status_code == 401
        assert "takes no token" in refused.text
        assert held(found) is None
        for name in ("X-Broker-Channel-Token", "X-Broker-Consumer-Token"):
            assert (await found.client.get(PAGE, headers={name: text})).status_code == 303
        assert (await follow(found, await link(found, "admin"))).status_code == 303
        assert await inside(found)


async def test_whoever_watches_is_not_told_more_when_the_session_has_ended(found: Application) -> None:
    await found.sign_in("admin")
    session = await found.system.sessions.find(held(found) or "")
    assert session is not None
    caller = Caller("token", (session.token.scope,), (session.token.id,), session.key)
    await check_again(found.system, caller)
    await found.system.sessions.end(held(found) or "")
    with pytest.raises(Unauthorized):
        await check_again(found.system, caller)


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "https://evil.example", "\\\\evil", ""]
)
async def test_signing_in_leads_to_no_other_site(found: Application, path: str) -> None:
    sent = {"token": await found.token("reader"), "next": path}
    answer = await found.client.post("/login", data=sent, headers=found.form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
