"""Lists, counts and cursors: nothing is counted, paged or named that their caller may not read."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator

import pytest
from application import application, problem

import holdfast
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.deadletters.service import MOST_SOURCES
from holdfast.model.decide import describe
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.signing import SealedCursors
from holdfast.upkeep.state import Secret
from kit import bury, claim, publish, subscribe

A, B = "tenant-a.orders", "tenant-b.orders"
COPIES = "gbe._deadletter.a"
LETTERS = "/api/v1/deadletters"
NUMBER = 30


async def bury_some(bus: holdfast.Bus, channel: str, number: int, consumer: str = "worker") -> None:
    """Dead letters of a channel."""
    store = bus.partitions.all[0].backend
    await subscribe(store, consumer, channel=channel)
    await publish(store, *(f"{channel}-{n}" for n in range(number)), channel=channel)
    for job in await claim(store, channel=channel, consumer=consumer):
        await bury(store, job, describe(KeyError("a secret of both")))


@pytest.fixture
async def both(bus: holdfast.Bus) -> holdfast.Bus:
    """Two tenants with as many dead letters."""
    await bury_some(bus, A, NUMBER)
    await bury_some(bus, B, NUMBER)
    return bus


def next_of(html: str) -> str | None:
    """Where the page's link to older ones leads."""
    found = re.search(r'rel="next" href="([^"]+)"', html)
    return None if found is None else found[1].replace("&amp;", "&")


def inside(cursor: str) -> Iterator[str]:
    """Everything that a cursor could tell whoever takes it apart."""
    yield cursor
    for start in (0, 32):
        text = cursor[start:]
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        yield packed.decode(errors="replace")
        try:
            yield zlib.decompress(packed).decode()
        except zlib.error:
            continue


@pytest.mark.parametrize(
    ("scope", "own"),
    [
        (("reader", "tenant-a.>"), NUMBER),
        (("channel", A), NUMBER),
        (("consumer", A, "worker"), NUMBER),
        (("reader", "tenant-c.>"), 0),
        (("consumer", A, "other"), 0),
    ],
    ids=str,
)
async def test_the_page_of_dead_letters_tells_of_nobody_else(
    both: holdfast.Bus, scope: tuple[str, ...], own: int
) -> None:
    async with application(both, local=False) as found:
        headers = await found.session(*scope)
        for query in ("", f"channel={B}&", "text=secret&", "fingerprint=0123456789abcdef&"):
            path, seen, pages = f"/deadletters?{query}", list[str](), 0
            while path:
                answer = await found.client.get(path, headers=headers)
                assert answer.status_code == 200, answer.text
                shown = answer.text.replace(f'value="{B}"', "").replace(f"channel={B}", "")
                shown = shown.replace(f"<dd>{B}</dd>", "").replace(f"<b>{B}</b>", "")
                assert "tenant-b.orders-" not in shown
                assert "tenant-b" not in shown, re.findall(".{80}tenant-b.{80}", shown)
                seen += re.findall(rf"{A}-\d+\b", shown.partition("items-title")[2])
                path, pages = next_of(answer.text) or "", pages + 1
                for text in inside(path.rpartition("after=")[2]) if path else ():
                    assert "tenant-b" not in text
            whole = own if query in ("", "text=secret&") else 0
            assert pages == (2 if whole else 1), query
            assert len(set(seen)) == whole


async def test_a_cursor_is_for_whoever_got_it_and_for_the_list_that_it_is_from(both: holdfast.Bus) -> None:
    async with application(both, local=False) as found, application(both, local=False) as other:
        mine, twin = await found.bearer("channel", A), await found.bearer("channel", A)
        query = {"channel": A, "limit": 10}
        page = (await found.client.get(LETTERS, params=query, headers=mine)).json()
        after = page["after"]
        for server in (found, other):
            rest = await server.client.get(LETTERS, params={**query, "after": after}, headers=mine)
            assert not {each["id"] for each in rest.json()["items"]} & {each["id"] for each in page["items"]}
        dlq = f"/channel/{A}/consumer/worker/dlq"
        problem(await found.client.get(LETTERS, params={**query, "after": after}, headers=twin), 400)
        problem(await found.client.get(dlq, params={"after": after}, headers=mine), 400)
        changed = after[:-1] + ("A" if after[-1] != "A" else "B")
        for text in (changed, after[1:], after[32:], "x", "", "0" * 32, "\u00e9" * 40):
            answer = await found.client.get(LETTERS, params={**query, "after": text}, headers=mine)
            problem(answer, 400)


async def test_a_cursor_of_one_list_is_none_of_another(bus: holdfast.Bus) -> None:
    """Also where both lists would understand what is in it."""
    cursors, caller = SealedCursors(Secret(bus.partitions.all[0].backend, "gbe")), Caller("token:a", ())
    sealed = await cursors.seal(caller, "one", "x")
    assert await cursors.open(caller, "one", sealed) == "x"
    with pytest.raises(InvalidInput):
        await cursors.open(caller, "two", sealed)


async def test_the_brokers_list_goes_on_with_its_own_cursor(both: holdfast.Bus) -> None:
    async with application(both, local=False) as found:
        mine, path = await found.bearer("channel", A), f"/channel/{A}/consumer/worker/dlq"
        seen, after = list[str](), None
        while True:
            query = {"limit": 20} | ({"after": after} if after else {})
            page = (await found.client.get(path, params=query, headers=mine)).json()
            seen += [each["messageId"] for each in page["jobs"]]
            after = page["after"]
            if after is None:
                break
        assert len(seen) == len(set(seen)) == NUMBER


async def test_an_operation_counts_shows_and_changes_what_its_asker_may_operate_on(
    both: holdfast.Bus,
) -> None:
    """Messages of other dead-letter channels say that they came from here: they are not here."""
    store = both.partitions.all[0].backend
    told = {"holdfast-channel": A, "holdfast-consumer": "worker", "holdfast-id": "x"}
    await store.log.publish("gbe._deadletter.b", [Event(b"1", f"b-{n}", headers=told) for n in range(3)])
    await store.log.publish(COPIES, [Event(b"1", "a-0", headers=told)])
    body = {"kind": "requeue", "filter": {"channel": A, "kinds": ["stream"]}}
    async with application(both, local=False) as found:
        headers = await found.bearer("channel", A)
        headers["X-Broker-Channel-Token"] = await found.token("channel", COPIES)
        dry = await found.client.post("/api/v1/operations", json={**body, "dry_run": True}, headers=headers)
        assert (dry.json()["count"], len(dry.json()["sample"])) == (1, 1), dry.text
        asked = await found.client.post("/api/v1/operations", json=body, headers=headers)
        done = await found.system.runner.follow(asked.json()["id"])
        assert (done.progress.expected, done.progress.done, done.progress.looked_at) == (1, 1, 1)


async def test_who_only_has_the_name_of_an_asker_does_not_see_the_operation(both: holdfast.Bus) -> None:
    """A name is what the command line was told; what somebody may see follows from their rights."""
    async with application(both, local=False) as found:
        headers = await found.bearer("channel", A)
        [token] = await found.tokens.all()
        wanted = Filter.of(channel=B, kinds=["job"])
        operation = await found.system.operations.ask(Request("requeue", wanted), f"token:{token.id}")
        nothing = "0" * len(operation.id)
        told = [
            str(problem(await found.client.get(f"/api/v1/operations/{each}", headers=headers), 404)["detail"])
            for each in (operation.id, nothing)
        ]
        assert told[0].replace(operation.id, "ID") == told[1].replace(nothing, "ID")
        listed = (await found.client.get("/api/v1/operations", headers=headers)).json()["items"]
        assert listed == []


async def test_a_tenant_sees_no_operation_that_tells_of_other_dead_letter_channels(
    both: holdfast.Bus,
) -> None:
    store = both.partitions.all[0].backend
    told = {"holdfast-channel": A, "holdfast-id": "x", "holdfast-consumer": "worker"}
    await store.log.publish("gbe._deadletter.tenant-b", [Event(b"1", "b", headers=told)])
    async with application(both, local=False) as found:
        admin, mine = await found.bearer("admin"), await found.bearer("channel", A)
        body = {"kind": "requeue", "filter": {"channel": A, "kinds": ["stream"]}}
        asked = await found.client.post("/api/v1/operations", json=body, headers=admin)
        await found.system.runner.follow(asked.json()["id"])
        problem(await found.client.get(asked.headers["Location"], headers=mine), 404)
        assert (await found.client.get("/api/v1/operations", headers=mine)).json()["items"] == []


async def test_a_list_that_would_take_from_very_many_places_wants_a_channel(bus: holdfast.Bus) -> None:
    for number in range(MOST_SOURCES + 1):
        await bury_some(bus, f"tenant-a.c{number}", 1)
    async with application(bus, local=False) as found:
        headers = await found.session("reader", "tenant-a.>")
        answer = await found.client.get("/deadletters", headers=headers)
        assert answer.status_code == 400
        assert "name a channel" in answer.text
        one = await found.client.get("/deadletters?channel=tenant-a.c7", headers=headers)
        assert "tenant-a.c7-0" in one.text
        await bury_some(bus, "tenant-a.c0", 1, "second")
        everything = await found.session("reader")
        assert (await found.client.get("/deadletters", headers=everything)).status_code == 200
