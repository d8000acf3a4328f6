"""Detours: what a token cannot do directly it cannot do by a dead letter, a header or a channel of ours."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from application import Application, application, problem

import holdfast
from holdfast.deadletters.operation import Operation
from holdfast.model.event import Event
from kit import bury, claim, publish, read_all, subscribe

MINE, THEIRS = "tenant-a.orders", "tenant-b.orders"
COPIES = "gbe._deadletter.a"
AUDIT = "gbe.events.system.audit"
OPERATIONS = "/api/v1/operations"
ITEMS = {"items": [f"stream:{COPIES}:POSITION"]}
FILTER = {"filter": {"channel": COPIES, "kinds": ["stream"]}}


def events_of(channel: str) -> str:
    return f"/api/v1/channels/{channel}/events"


async def forged(bus: holdfast.Bus, target: str, name: str = "forged") -> str:
    """A message that says it came from elsewhere, as an older version let anybody write it."""
    store = bus.partitions.all[0].backend
    headers = {"holdfast-channel": target, "holdfast-id": "x", "holdfast-error": "boom"}
    [receipt] = await store.log.publish(COPIES, [Event(b'{"evil": 1}', name, headers=headers)])
    return receipt.position


async def requeued(
    found: Application, headers: dict[str, str], which: dict[str, Any], position: str
) -> Operation | None:
    """Ask for a requeue, and run it where it was accepted."""
    if "items" in which:
        which = {"items": [each.replace("POSITION", position) for each in which["items"]]}
    answer = await found.client.post(OPERATIONS, json={"kind": "requeue", **which}, headers=headers)
    if answer.status_code != 202:
        assert answer.status_code in (403, 404), answer.text
        return None
    return await found.system.runner.follow(answer.json()["id"])


async def names(bus: holdfast.Bus, channel: str) -> list[str]:
    """The ids of a log."""
    return [each.event.id for each in await read_all(bus.partitions.all[0].backend, channel)]


@pytest.mark.parametrize("which", [ITEMS, FILTER], ids=["items", "filter"])
@pytest.mark.parametrize("target", [THEIRS, AUDIT, "tenant-b.new"])
async def test_a_requeue_writes_only_where_its_asker_may_publish(
    bus: holdfast.Bus, which: dict[str, Any], target: str
) -> None:
    await publish(bus.partitions.all[0].backend, "theirs", channel=THEIRS)
    position = await forged(bus, target)
    async with application(bus, local=False) as found:
        headers = await found.bearer("channel", COPIES)
        before = await names(bus, target)
        done = await requeued(found, headers, which, position)
        assert done is not None
        assert (done.state, done.progress.done, done.progress.skipped) == ("done", 0, 1)
        written = [each for each in await names(bus, target) if each not in before]
        assert not [each for each in written if each.startswith("requeued-")]


async def test_who_may_publish_there_requeues_a_message_there(bus: holdfast.Bus) -> None:
    """The control: the same requeue with the right to publish at its target."""
    position = await forged(bus, MINE)
    async with application(bus, local=False) as found:
        headers = await found.bearer("channel", COPIES)
        headers["X-Broker-Channel-Token"] = await found.token("producer", "tenant-a.>")
        done = await requeued(found, headers, ITEMS, position)
        assert done is not None
        assert done.progress.done == 1, done
        assert len(await names(bus, MINE)) == 1


async def test_whoever_resumes_an_operation_gets_no_right_of_its_asker_and_gives_none(
    bus: holdfast.Bus,
) -> None:
    async with application(bus, local=False) as found:
        mine, admin = await found.bearer("channel", COPIES), await found.bearer("admin")
        for number, (asks, resumes) in enumerate([(mine, admin), (admin, mine)]):
            position = await forged(bus, THEIRS, f"forged-{number}")
            body = {"kind": "requeue", "items": [f"stream:{COPIES}:{position}"]}
            asked = await found.client.post(OPERATIONS, json=body, headers=asks)
            path = f"{OPERATIONS}/{asked.json()['id']}"
            assert (await found.client.post(f"{path}/cancel", headers=resumes)).status_code == 200
            assert (await found.client.post(f"{path}/resume", headers=resumes)).status_code == 202
            done = await found.system.runner.follow(asked.json()["id"])
            assert (done.progress.done, done.progress.skipped) == (0, 1), done
        assert await names(bus, THEIRS) == []


async def test_no_requeue_writes_to_a_channel_of_holdfast_not_even_an_admins(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        headers = await found.bearer("admin")
        for number, target in enumerate((AUDIT, "gbe._deadletter.b")):
            position = await forged(bus, target, f"forged-{number}")
            done = await requeued(found, headers, ITEMS, position)
            assert done is not None
            assert done.progress.done == 0
            assert "written by Holdfast itself" in done.problems[0]
            assert not [each for each in await names(bus, target) if each.startswith("requeued-")]


@pytest.mark.parametrize("how", ["", "/batch", "/stream"])
@pytest.mark.parametrize(
    "event",
    [
        {"data": 1, "headers": {"holdfast-channel": THEIRS}},
        {"data": 1, "headers": {"Holdfast-Requeued": "x"}},
        {"data": 1, "source": "holdfast", "id": "known"},
    ],
    ids=["header", "header in capitals", "source"],
)
async def test_what_only_holdfast_says_nobody_else_publishes(
    bus: holdfast.Bus, how: str, event: dict[str, Any]
) -> None:
    async with application(bus, local=False) as found:
        for channel in (COPIES, MINE):
            headers = await found.bearer("channel", channel)
            body: dict[str, Any] = {"json": {"events": [event]} if how == "/batch" else event}
            if how == "/stream":
                body = {"content": httpx.Request("POST", "http://x", json=event).content}
                headers["Content-Type"] = "application/x-ndjson"
            answer = await found.client.post(events_of(channel) + how, headers=headers, **body)
            assert "Holdfast" in str(problem(answer, 400)["detail"])
            assert await names(bus, channel) == []


OURS = (AUDIT, "gbe.events.system.sweep", COPIES)


@pytest.mark.parametrize("pattern", [None, "gbe.>", "gbe.*.*", "gbe.events.>", "*.events.*.audit"])
async def test_no_wildcard_covers_what_holdfast_writes(bus: holdfast.Bus, pattern: str | None) -> None:
    store = bus.partitions.all[0].backend
    for channel in OURS:
        await publish(store, "told", channel=channel)
    where = () if pattern is None else (pattern,)
    async with application(bus, local=False) as found:
        producer, reader = await found.bearer("producer", *where), await found.bearer("reader", *where)
        for channel in OURS:
            answer = await found.client.post(events_of(channel), json={"data": 1}, headers=producer)
            problem(answer, 403)
            read = await found.client.get(events_of(channel), headers=reader)
            assert read.status_code == (200 if pattern is None and channel != AUDIT else 403), channel
            assert (await names(bus, channel))[0] == "told"
        listed = (await found.client.get("/api/v1/channels", headers=reader)).json()["items"]
        seen = {each["name"] for each in listed}
        assert seen == (set(OURS) - {AUDIT} if pattern is None else set())


async def test_a_token_that_names_them_covers_them(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    for channel in OURS:
        await publish(store, "told", channel=channel)
    async with application(bus, local=False) as found:
        for channel in OURS:
            named = channel.rpartition(".")[0] + ".*"
            for kind, pattern in (("producer", named), ("producer", channel), ("channel", channel)):
                headers = await found.bearer(kind, pattern)
                answer = await found.client.post(events_of(channel), json={"data": 1}, headers=headers)
                assert answer.status_code == 201, answer.text
            for kind, pattern in (("reader", named), ("reader", channel), ("channel", channel)):
                headers = await found.bearer(kind, pattern)
                read = await found.client.get(events_of(channel), headers=headers)
                assert read.status_code == 200


async def test_a_reader_of_everything_sees_no_page_of_the_audit(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        for scope, status in ((("reader",), 403), (("reader", AUDIT), 200), (("admin",), 200)):
            session = await found.session(*scope)
            assert (await found.client.get("/audit", headers=session)).status_code == status


async def test_a_bearer_token_does_not_stand_in_for_half_a_pair(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store, "worker", channel=MINE)
    await publish(store, "e", channel=MINE)
    [job] = await claim(store, channel=MINE, consumer="worker")
    await bury(store, job)
    path = f"/channel/{MINE}/consumer/worker"
    async with application(bus, local=False) as found:
        channel = {"X-Broker-Channel-Token": await found.token("channel", MINE)}
        others = [("reader",), ("producer",), ("channel", "tenant-c"), ("consumer", "tenant-c", "x")]
        for scope in others:
            headers = channel | await found.bearer(*scope)
            for method, rest in (("DELETE", "/dlq"), ("DELETE", f"/job/{job.id}"), ("POST", "/dlq")):
                problem(await found.client.request(method, path + rest, headers=headers), 401)
        half = channel | {"X-Broker-Consumer-Token": await found.token("consumer", MINE, "other")}
        headers = half | await found.bearer("reader")
        problem(await found.client.request("DELETE", f"{path}/dlq", headers=headers), 403)
        whole = channel | {"X-Broker-Consumer-Token": await found.token("consumer", MINE, "worker")}
        headers = whole | await found.bearer("reader")
        deleted = await found.client.request("DELETE", f"{path}/dlq", headers=headers)
        assert deleted.json() == {"deleted": 1}


@pytest.mark.parametrize(
    "times",
    [
        {"since": "0001-01-01T00:00:00Z"},
        {"since": "1970-01-01T00:00:00+00:00"},
        {"until": "9999-12-31T00:00:00Z"},
        {"since": "0001-01-02T00:00:00Z", "until": "9000-01-01T00:00:00Z"},
    ],
    ids=str,
)
async def test_a_filter_that_excludes_nothing_is_an_empty_one(
    bus: holdfast.Bus, times: dict[str, str]
) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store, "worker", channel=MINE)
    await publish(store, "e", channel=MINE)
    [job] = await claim(store, channel=MINE, consumer="worker")
    await bury(store, job)
    async with application(bus) as found:
        for kind in ("purge", "requeue"):
            body = {"kind": kind, "filter": times}
            refused = await found.client.post(OPERATIONS, json=body)
            assert "say so with all" in str(problem(refused, 400)["detail"])
            narrow = {"kind": kind, "filter": {**times, "channel": MINE}, "dry_run": True}
            assert (await found.client.post(OPERATIONS, json=narrow)).json()["count"] == 1
        question = await found.client.get("/deadletters/ask", params={"act": "purge", **times})
        assert 'name="all" value="yes" required' in question.text
        meant = await found.client.post(OPERATIONS, json={"kind": "purge", "filter": times, "all": True})
        assert meant.status_code == 202
        [one] = (await found.client.get("/dlq-status")).json()["consumers"]
        assert one["deadCount"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "Holdfast-Channel",
        "HOLDFAST-channel",
        " holdfast-channel",
        "holdfast-channel ",
        "\tholdfast-channel",
        "holdfast\u2010channel",
        "\uff28oldfast-channel",
        "holdfa\u017ft-channel",
        "holdfast_channel",
        "x\r\nholdfast-channel",
        "x: y\nholdfast-channel",
    ],
)
async def test_no_spelling_of_a_header_becomes_one_of_ours(each: holdfast.Bus, name: str) -> None:
    """Whatever a store, or its protocol, makes of a name: it stays another one, or is refused."""
    async with application(each) as found:
        sent = {"id": "e", "data": 1, "headers": {name: THEIRS}}
        answer = await found.client.post(events_of(COPIES), json=sent)
        if answer.status_code == 201:
            [entry] = await read_all(each.partitions.all[0].backend, COPIES)
            assert dict(entry.event.headers) == {name: THEIRS}
            assert not name.lower().startswith("holdfast-")
        else:
            assert answer.status_code in (400, 422), answer.text
