"""The guard: who gets in, and who does not."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import get_args

import httpx
import pytest
from application import Application, application, problem
from fastapi import Depends, Request

import holdfast
from holdfast.config.config import Config
from holdfast.embedded import Postgres
from holdfast.model.scopes import Verb
from holdfast.server.app import Choice, assemble
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import COOKIE, SECURE_COOKIE, Router, anybody, needs
from holdfast.server.auth.tokens import Issued
from holdfast.server.errors import Conflict
from kit import until

VERBS: tuple[Verb, ...] = get_args(Verb)


def probe(verb: Verb, path: str, **how: bool) -> Router:
    """A route that needs a verb and answers who called."""
    router, need = Router(), Depends(needs(verb, **how))

    @router.post(path)
    async def route(caller: Caller = need) -> str:
        return caller.actor

    return router


def within() -> Router:
    """A route that finds out for itself that the caller's token does not cover what is asked for."""
    router, need = Router(), Depends(needs("operate", filtered=True))

    @router.post("/within")
    async def route(caller: Caller = need) -> None:
        caller.require("operate", "stock")

    @router.post("/conflict")
    async def conflict(caller: Caller = need) -> None:
        raise Conflict("it is not in that state")

    return router


def add_probes(found: Application) -> None:
    """A route for each verb: on all channels, on one, and on one consumer."""
    for verb in VERBS:
        for path in ("", "/{channel}", "/{channelId}/{consumerId}"):
            found.app.include_router(probe(verb, f"/probe/{verb}{path}"))
    found.app.include_router(probe("read", "/filtered", filtered=True))
    found.app.include_router(within())
    found.app.include_router(probe("operate", "/pair/{channelId}/{consumerId}", pair=True))


async def ask(found: Application, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return await found.client.post(path, headers=headers)


async def statuses(found: Application, headers: dict[str, str], where: str) -> dict[str, int]:
    return {verb: (await ask(found, f"/probe/{verb}{where}", headers)).status_code for verb in VERBS}


@pytest.mark.parametrize("local", [True, False])
async def test_without_a_token_nobody_reads_or_writes_loopback_included(
    bus: holdfast.Bus, local: bool
) -> None:
    async with application(bus, local=local, open=False) as found:
        add_probes(found)
        for _ in range(2):
            for where in ("", "/orders", "/orders/billing"):
                assert set((await statuses(found, {}, where)).values()) == {401}
            problem(await found.client.get("/metrics"), 401)
            assert (await found.client.get("/channels")).status_code == 303
            await found.token("reader")  # it does not matter whether there are tokens


async def test_where_a_setting_opens_it_programs_on_this_machine_may_do_everything(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_probes(found)
        for where in ("", "/orders", "/orders/billing"):
            assert set((await statuses(found, {}, where)).values()) == {200}
        assert (await ask(found, "/probe/admin")).json() == "local"
        headers = await found.bearer("reader")
        problem(await ask(found, "/probe/admin", headers), 403)  # whoever shows a token has its rights


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - it must be refused
async def test_nothing_is_open_off_loopback(bus: holdfast.Bus, host: str) -> None:
    config = Config.model_validate({"server": {"open": True, "host": host, "port": 0}})
    with pytest.raises(holdfast.HoldfastError, match=r"server\.open is for loopback only"):
        assemble(bus, config, Choice())


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"],
)
async def test_whoever_comes_through_a_proxy_is_not_on_this_machine(bus: holdfast.Bus, header: str) -> None:
    async with application(bus) as found:
        add_probes(found)
        problem(await ask(found, "/probe/read", {"Host": "127.0.0.1", header: "127.0.0.1"}), 401)
        assert (await found.client.get("/metrics", headers={header: "127.0.0.1"})).status_code == 401


async def test_metrics_are_read_with_a_token_a_session_or_where_a_setting_opens_them(
    bus: holdfast.Bus,
) -> None:
    async with (
        application(bus, local=False) as found,
        application(bus, local=False, open_metrics=True) as opened,
    ):
        problem(await found.client.get("/metrics"), 401)
        problem(await found.client.get("/metrics", headers=await found.bearer("reader", "orders.*")), 403)
        assert (await found.client.get("/metrics", headers=await found.bearer("reader"))).status_code == 200
        await found.sign_in("reader")
        assert (await found.client.get("/metrics")).status_code == 200
        assert (await opened.client.get("/metrics")).status_code == 200
        problem(await opened.client.get("/api/v1/channels"), 401)


async def seen_from(bus: holdfast.Bus, forwarded: dict[str, str], *trusted: str) -> tuple[str, str]:
    """The client's address and the scheme, as a route sees them behind a proxy on 127.0.0.1."""
    async with application(bus, local=False, trusted_proxies=trusted) as found:

        @found.app.get("/seen", dependencies=[Depends(anybody)])
        async def seen(request: Request) -> list[str]:
            return [request.client.host if request.client else "", request.url.scheme]

        host, scheme = (await found.client.get("/seen", headers=forwarded)).json()
        return host, scheme


async def test_only_a_trusted_proxy_says_who_calls_and_how(bus: holdfast.Bus) -> None:
    spoofed = {"X-Forwarded-For": "1.1.1.1, 203.0.113.9, 10.0.0.7", "X-Forwarded-Proto": "https"}
    assert await seen_from(bus, spoofed) == ("127.0.0.1", "http")
    assert await seen_from(bus, spoofed, "10.0.0.0/8") == ("127.0.0.1", "http")
    # Each hop adds what it sees: the last one that is not trusted called, whatever it says about others.
    assert await seen_from(bus, spoofed, "127.0.0.1") == ("10.0.0.7", "https")
    assert await seen_from(bus, spoofed, "127.0.0.1", "10.0.0.0/8") == ("203.0.113.9", "https")
    odd = {"X-Forwarded-Proto": "javascript"}
    assert await seen_from(bus, odd, "127.0.0.1") == ("127.0.0.1", "http")


async def test_behind_a_trusted_proxy_with_tls_the_cookie_is_secure(bus: holdfast.Bus) -> None:
    for trusted, name in (((), COOKIE), (("127.0.0.1",), SECURE_COOKIE)):
        async with application(bus, local=False, trusted_proxies=trusted) as found:
            headers = {"Origin": "https://holdfast.example", "X-Forwarded-Proto": "https"}
            sent = {"token": await found.token("admin")}
            answer = await found.client.post("/login", data=sent, headers=headers)
            assert answer.status_code == 303
            assert answer.headers["set-cookie"].startswith(f"{name}=")
            assert ("Secure" in answer.headers["set-cookie"]) == bool(trusted)


async def test_readiness_tells_strangers_no_host_port_or_database(frail: list[str], mortal: Postgres) -> None:
    other, away = frail
    async with holdfast.connect([other, away]) as bus, application(bus, local=False) as found:
        admin, tenant = await found.bearer("admin"), await found.bearer("channel", "orders")
        await asyncio.to_thread(mortal.kill)

        async def unready() -> bool:
            return (await found.client.get("/readyz")).status_code == 503

        await until(unready)
        for headers in ({}, tenant, {"Authorization": "Bearer nonsense"}):
            told = await found.client.get("/readyz", headers=headers)
            assert (told.status_code, told.json()["ready"], told.json()["parts"]) == (503, False, [])
            for secret in ("127.0.0.1", str(mortal.port), "postgres", "partition"):
                assert secret not in told.text
        told = await found.client.get("/readyz", headers=admin)
        assert told.status_code == 503
        assert "partition 1 does not answer" in told.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8420"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
        {"Origin": "https://evil.example"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "none"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
)
async def test_a_web_page_cannot_use_a_browser_on_this_machine(
    bus: holdfast.Bus, headers: dict[str, str]
) -> None:
    async with application(bus) as found:
        add_probes(found)
        assert (await ask(found, "/probe/admin", headers)).status_code in (400, 401, 403)
        for host in ("localhost:8420", "127.0.0.1:8420", "127.0.0.2", "[::1]:8420"):
            here = {"Host": host, "Origin": f"http://{host}"}
            assert (await ask(found, "/probe/admin", here)).status_code == 200


async def test_each_kind_of_token_gets_what_its_scope_says(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        add_probes(found)
        admin, reader = await found.bearer("admin"), await found.bearer("reader")
        channel, consumer = await found.bearer("channel", "a"), await found.bearer("consumer", "a", "x")
        producer = await found.bearer("producer", "a.*")
        only = lambda *verbs: {verb: 200 if verb in verbs else 403 for verb in VERBS}  # noqa: E731
        for where in ("", "/a", "/a/x", "/b/x"):
            assert await statuses(found, admin, where) == only(*VERBS)
            assert await statuses(found, reader, where) == only("read")
        mine = only("read", "publish", "consume", "operate")
        assert await statuses(found, channel, "/a") == mine
        assert await statuses(found, channel, "/a/x") == mine
        assert await statuses(found, channel, "/b/x") == await statuses(found, channel, "") == only()
        assert await statuses(found, consumer, "/a/x") == only("read", "consume")
        assert await statuses(found, consumer, "/a/y") == await statuses(found, consumer, "/a") == only()
        assert await statuses(found, producer, "/a.b") == only("publish")
        assert await statuses(found, producer, "/a") == await statuses(found, producer, "/b.c") == only()


async def test_a_route_that_filters_lets_in_whoever_sees_something(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        add_probes(found)
        assert (await ask(found, "/filtered", await found.bearer("channel", "a"))).status_code == 200
        problem(await ask(found, "/filtered", await found.bearer("producer", "a")), 403)


async def test_a_pair_of_tokens_must_be_whole_and_each_in_its_scope(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        add_probes(found)
        of_channel, of_consumer = await found.token("channel", "a"), await found.token("consumer", "a", "x")
        other, elsewhere = await found.token("consumer", "a", "y"), await found.token("channel", "b")

        async def delete(channel: str | None, consumer: str | None) -> int:
            given = {"X-Broker-Channel-Token": channel, "X-Broker-Consumer-Token": consumer}
            headers = {name: value for name, value in given.items() if value is not None}
            return (await ask(found, "/pair/a/x", headers)).status_code

        assert await delete(of_channel, of_consumer) == 200
        assert await delete(of_channel, None) == 401
        assert await delete(None, of_consumer) == 403
        assert await delete(None, None) == 401
        assert await delete(of_channel, other) == 403
        assert await delete(elsewhere, of_consumer) == 403
        assert await delete(of_consumer, of_channel) == 200  # both cover it, whatever the header is called
        assert await delete(of_channel, "nonsense") == await delete("nonsense", of_consumer) == 401
        for scope in (("channel", "a"), ("admin",)):
            assert (await ask(found, "/pair/a/x", await found.bearer(*scope))).status_code == 200


async def test_what_is_no_valid_token_is_refused_even_where_none_is_needed(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_probes(found)
        text = "hf_0123456789abcdef_" + "A" * 43
        for header in (
            f"Bearer {text}",
            text,
            "Bearer ",
            "Bearer",
            "",
            f"Basic {text}",
            f"Bearer {text}{text}",
            "Bearer hf__",
            "Bearer \u00e4\u00f6",
            f"bearer {text}\x00",
        ):
            answer = await found.client.post("/probe/read", headers={b"Authorization": header.encode()})
            problem(answer, 401)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_header_that_is_there_twice_is_refused(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_probes(found)
        good = (await found.bearer("admin"))["Authorization"]
        answer = await found.client.post("/probe/read", headers=[("Authorization", good)] * 2)
        problem(answer, 401)


async def test_a_token_is_not_taken_from_the_address(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        add_probes(found)
        token = await found.token("admin")
        for name in ("token", "access_token", "Authorization", "X-Broker-Channel-Token"):
            problem(await ask(found, f"/probe/read?{name}={token}"), 401)


async def test_any_other_secret_for_the_same_id_is_refused(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        add_probes(found)
        text = await found.token("admin")
        for place in range(len("hf_") + 16 + 1, len(text)):
            changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
            assert await found.tokens.verify(changed) is None
        assert await found.tokens.verify(text[:-1]) is None
        assert await found.tokens.verify(text.upper()) is None
        assert await found.tokens.verify(text) is not None


async def test_a_revoked_token_is_refused_at_once_by_every_server(bus: holdfast.Bus) -> None:
    async with application(bus) as found, application(bus) as other:
        add_probes(found)
        headers = await found.bearer("admin")
        [token] = await found.tokens.all()
        for _ in range(3):
            assert (await ask(found, "/probe/read", headers)).status_code == 200
        await other.tokens.revoke(token.id)
        problem(await ask(found, "/probe/read", headers), 401)
        assert [each.revoked_at is not None for each in await found.tokens.all()] == [True]


async def test_an_expired_token_is_refused_from_that_moment_on(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    async with application(bus) as found:
        add_probes(found)
        headers = {"Authorization": f"Bearer {await found.token('admin', lifetime=timedelta(hours=1))}"}
        await store.advance(timedelta(minutes=59))
        assert (await ask(found, "/probe/read", headers)).status_code == 200
        await store.advance(timedelta(minutes=1))
        problem(await ask(found, "/probe/read", headers), 401)


async def test_after_a_rotation_both_secrets_hold_for_the_overlap(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    async with application(bus) as found:
        old = await found.token("channel", "orders")
        [token] = await found.tokens.all()
        new = (await found.tokens.rotate(token.id, timedelta(hours=1))).text
        assert new.split("_")[1] == old.split("_")[1] != new.split("_")[2]
        for text in (old, new):
            assert await found.tokens.verify(text) is not None
        await store.advance(timedelta(hours=1))
        assert await found.tokens.verify(old) is None
        assert await found.tokens.verify(new) is not None
        newest = (await found.tokens.rotate(token.id, timedelta())).text
        assert await found.tokens.verify(new) is None
        await found.tokens.revoke(token.id)
        assert await found.tokens.verify(newest) is None
        with pytest.raises(holdfast.HoldfastError, match="is revoked; create another one"):
            await found.tokens.rotate(token.id, timedelta())


async def test_a_second_rotation_ends_the_oldest_secret(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        first = await found.token("admin")
        [token] = await found.tokens.all()
        second = (await found.tokens.rotate(token.id, timedelta(days=1))).text
        third = (await found.tokens.rotate(token.id, timedelta(days=1))).text
        verified = [await found.tokens.verify(text) is not None for text in (first, second, third)]
        assert verified == [False, True, True]


async def test_tokens_are_the_same_on_every_store(each: holdfast.Bus) -> None:
    async with application(each, local=False) as found:
        add_probes(found)
        text = await found.token("channel", "orders", lifetime=timedelta(days=2))
        headers = {"Authorization": f"Bearer {text}"}
        assert (await ask(found, "/probe/operate/orders", headers)).status_code == 200
        problem(await ask(found, "/probe/operate/stock", headers), 403)
        problem(await ask(found, "/probe/read/orders"), 401)
        [token] = await found.tokens.all()
        new = (await found.tokens.rotate(token.id, timedelta(days=1))).text
        assert [await found.tokens.verify(each) is not None for each in (text, new)] == [True, True]
        await each.partitions.all[0].backend.advance(timedelta(days=1))
        assert [await found.tokens.verify(each) is not None for each in (text, new)] == [False, True]
        await found.tokens.revoke(token.id)
        problem(await ask(found, "/probe/read/orders", {"Authorization": f"Bearer {new}"}), 401)


async def test_a_revocation_and_rotations_at_the_same_time_all_count(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        first = await found.token("admin")
        [token] = await found.tokens.all()
        made = await asyncio.gather(*(found.tokens.rotate(token.id, timedelta(hours=1)) for _ in range(5)))
        texts = [first, *(issued.text for issued in made)]
        assert sum([await found.tokens.verify(text) is not None for text in texts]) == 2
        answers = await asyncio.gather(
            found.tokens.rotate(token.id, timedelta(hours=1)),
            found.tokens.revoke(token.id),
            found.tokens.rotate(token.id, timedelta(hours=1)),
            return_exceptions=True,
        )
        texts += [each.text for each in answers if isinstance(each, Issued)]
        assert not [text for text in texts if await found.tokens.verify(text) is not None]


async def test_nobody_gets_in_while_the_store_of_the_tokens_is_away(
    frail: list[str], mortal: Postgres
) -> None:
    other, away = frail
    async with holdfast.connect([away, other]) as bus, application(bus) as found:
        add_probes(found)
        headers = await found.bearer("admin")
        await asyncio.to_thread(mortal.kill)
        answer = await ask(found, "/probe/read", headers)
        problem(answer, 503)
        assert answer.headers["Retry-After"] == "1"
        assert (await found.client.get("/healthz")).status_code == 200
        assert (await found.client.get("/readyz")).status_code == 503
        assert bus.partitions.all[0].backend.url not in (await found.client.get("/readyz")).text
        await asyncio.to_thread(mortal.start)

        async def ready() -> bool:
            return (await found.client.get("/readyz")).status_code == 200

        await until(ready)
        assert (await ask(found, "/probe/read", headers)).status_code == 200


async def test_a_secret_is_stored_nowhere(bus: holdfast.Bus, caplog: pytest.LogCaptureFixture) -> None:
    store = bus.partitions.all[0].backend
    with caplog.at_level(logging.DEBUG):
        async with application(bus) as found:
            add_probes(found)
            text = await found.token("channel", "orders")
            headers = {"Authorization": f"Bearer {text}"}
            assert (await ask(found, "/probe/read/orders", headers)).status_code == 200
            refused = await ask(found, "/probe/admin/orders", headers)
            unknown = await ask(found, "/probe/read/orders", {"Authorization": f"Bearer {text[:-1]}x"})
    secret = text.split("_", 2)[2]
    [record] = await store.records.due("gbe.state.tokens.", 10)
    assert record.key == f"gbe.state.tokens.{text.split('_')[1]}"
    for told in (str(dict(record.fields)), caplog.text, refused.text, unknown.text):
        assert secret not in told
        assert secret[:-1] not in told


async def test_a_refused_call_is_audited_with_who_and_what(
    bus: holdfast.Bus, caplog: pytest.LogCaptureFixture
) -> None:
    async with application(bus) as found:
        add_probes(found)
        headers = await found.bearer("channel", "orders")
        [token] = await found.tokens.all()
        with caplog.at_level(logging.WARNING):
            await ask(found, "/probe/admin/orders", headers)
            await ask(found, "/probe/admin/orders", {"Authorization": "Bearer hf_x"})
            await ask(found, "/within", headers)
            await ask(found, "/conflict", headers)
    told = [entry.event.json() for entry in await bus.read("gbe.events.system.audit")]
    assert [(each["actor"], each["action"], each["target"]) for each in told] == [
        (f"token:{token.id}", "POST /probe/admin/{channel}", "/probe/admin/orders"),
        (f"token:{token.id}", "POST /within", "/within"),
    ]
    assert told[0]["outcome"] == (
        "refused: the token does not cover admin on channel 'orders'; use one with that scope"
    )
    assert caplog.text.count(f"refused 403: token:{token.id} from 127.0.0.1 on /probe/admin/orders") == 1
    assert caplog.text.count("refused 401: nobody from 127.0.0.1 on /probe/admin/orders") == 1


async def test_refused_calls_do_not_fill_the_log(bus: holdfast.Bus, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a stranger's nor a token's, whatever the path; and neither hides the other's."""
    async with application(bus, local=False) as found:
        headers = await found.bearer("reader", "mine")
        path = f"/api/v1/deadletters/job:{'x' * 20_000}"
        with caplog.at_level(logging.WARNING):
            for sent in ({}, headers) * 100:
                assert (await found.client.get(path, headers=sent)).status_code in (401, 403, 404, 422)
                await found.client.get("/api/v1/channels/theirs", headers=sent)
    assert 0 < sum("nobody" in each.getMessage() for each in caplog.records) <= 30
    assert 0 < sum("token:" in each.getMessage() for each in caplog.records) <= 30
    assert max(len(each.getMessage()) for each in caplog.records) < 1_000


@pytest.mark.parametrize(
    "name", ["a..b", "A", "a*", "a%00", "%2e%2e", "a" * 129, "%F0%9F%92%A9", "a%0Ab", "-a"]
)
async def test_names_that_cannot_be_are_refused_before_anything_is_asked(
    bus: holdfast.Bus, name: str
) -> None:
    async with application(bus) as found:
        add_probes(found)
        refused = problem(await ask(found, f"/probe/publish/{name}"), 400)
        assert refused["type"] == "urn:holdfast:problem:invalid-name"
        problem(await ask(found, f"/probe/consume/orders/{name}"), 400)


@pytest.mark.parametrize("scope", [("channel", "orders"), ("reader",)], ids=str)
async def test_without_its_store_the_server_tells_no_stranger_and_no_tenant_where_that_is(
    scope: tuple[str, ...],
) -> None:
    """Nobody can be known then, but for a call that had begun before."""
    with Postgres() as postgres:
        url = postgres.create_database("hidden")
        async with holdfast.connect(url) as bus, application(bus, local=False) as found:
            routers = Router()

            @routers.get("/begun/{channel}", dependencies=[Depends(needs("read"))])
            async def begun() -> None:
                postgres.stop()
                await bus.partitions.all[0].backend.channels.names()

            found.app.include_router(routers)
            headers, session = await found.bearer(*scope), await found.session(*scope)
            first = await found.client.get("/begun/orders", headers=headers)
            sent = {"Authorization": f"Bearer hf_{'0' * 16}_{'x' * 43}"}
            secret = sent["Authorization"][7:]
            later = [
                await found.client.get("/api/v1/channels/orders", headers=sent),
                await found.client.get("/channels", headers=session),
                await found.client.post("/login", data={"token": secret}, headers=found.form),
                await found.client.get("/readyz"),
            ]
            port = url.partition("127.0.0.1:")[2].partition("/")[0]
            assert [each.status_code for each in (first, *later)] == [503] * 5
            told = "".join(each.text for each in (*later, *([] if scope == ("reader",) else [first])))
            for secret in ("hidden", port, "PostgreSQL", "127.0.0.1"):
                assert secret not in told, told
            if scope == ("reader",):
                assert port in first.text  # who reads all channels is told why
