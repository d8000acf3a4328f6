"""Dead letters over REST: listed, counted, clustered, shown; to each caller its own."""

from __future__ import annotations

from typing import Any

import pytest
from application import Application, application, problem

import holdfast
from holdfast.deadletters import Filter
from holdfast.model.decide import describe
from kit import CHANNEL, CONSUMER, bury, claim, publish, subscribe

LETTERS = "/api/v1/deadletters"
OTHER = "other"
GRAVEYARD = "gbe._deadletter.orders"


@pytest.fixture
async def graves(bus: holdfast.Bus) -> holdfast.Bus:
    """Five dead letters of two kinds of one consumer, one of a neighbour, one of another channel."""
    store = bus.partitions.all[0].backend
    for channel, consumer in ((CHANNEL, CONSUMER), (CHANNEL, OTHER), ("secret", CONSUMER)):
        await subscribe(store, consumer, channel=channel)
    await publish(store, *"abcde")
    await publish(store, "s", channel="secret")
    errors: list[Exception] = [KeyError(f"order {n}") for n in (11, 12, 13)]
    errors += [TimeoutError("bank 10.0.0.1"), TimeoutError("bank 10.0.0.2")]
    for job, error in zip(await claim(store), errors, strict=True):
        await bury(store, job, describe(error))
    [theirs] = await claim(store, 1, consumer=OTHER)
    [secret] = await claim(store, channel="secret")
    for job in (theirs, secret):
        await bury(store, job)
    return bus


async def ask(found: Application, path: str = "", headers: dict[str, str] | None = None, **query: Any) -> Any:
    answer = await found.client.get(f"{LETTERS}{path}", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_list_goes_page_by_page_the_latest_first(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        seen, after, query = [], None, {"channel": CHANNEL, "consumer": CONSUMER, "limit": 2}
        while True:
            page = await ask(found, **query, **({"after": after} if after else {}))
            seen += page["items"]
            if (after := page["after"]) is None:
                break
        assert [item["event_id"] for item in seen] == ["e", "d", "c", "b", "a"]
        assert seen == (await ask(found, **{**query, "limit": 100}))["items"]
        problem(await found.client.get(LETTERS, params={"after": "nowhere"}), 400)


async def test_filters_say_which_are_meant(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        everything = (await ask(found))["items"]
        assert len(everything) == 7
        last = everything[0]
        wanted: list[tuple[dict[str, str], int]] = [
            ({"kind": "KeyError"}, 3),
            ({"text": "bank"}, 2),
            ({"reason": "terminal"}, 7),
            ({"reason": "expired"}, 0),
            ({"fingerprint": last["fingerprint"], "channel": last["channel"]}, 1),
            ({"since": last["died_at"]}, 1),
            ({"until": last["died_at"]}, 6),
            ({"kinds": "stream"}, 0),
            ({"channel": CHANNEL, "consumer": OTHER}, 1),
        ]
        for query, count in wanted:
            assert len((await ask(found, **query))["items"]) == count, query
            assert await ask(found, "/count", **query) == {"count": count, "exact": True}, query
        for wrong in ({"since": "2030-01-31T09:00:00"}, {"kinds": "nothing"}):
            problem(await found.client.get(LETTERS, params=wrong), 422)
        problem(await found.client.get(LETTERS, params={"channel": "NO"}), 422)


async def test_clusters_are_told_by_what_went_wrong(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        clusters = await ask(found, "/clusters", channel=CHANNEL, consumer=CONSUMER)
        assert [each["count"] for each in clusters] == [3, 2]
        assert clusters[0]["pattern"].startswith("KeyError: ")
        assert clusters[1]["sample"]["event_id"] == "e"
        assert len(await ask(found, "/clusters", limit=1)) == 1


async def test_one_is_shown_whole(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        item = (await ask(found, kind="KeyError", limit=1))["items"][0]
        shown = await ask(found, f"/{item['id']}")
        assert (shown["data"], shown["headers"]) == ({"id": "c"}, {})
        assert "order 13" in shown["errors"][0]["error"]
        problem(await found.client.get(f"{LETTERS}/job:{CHANNEL}:{CONSUMER}:999"), 404)
        problem(await found.client.get(f"{LETTERS}/nonsense"), 400)
        problem(await found.client.get(f"{LETTERS}/ingest:abc"), 404)


async def test_a_token_shows_its_own_and_nothing_else(graves: holdfast.Bus) -> None:
    async with application(graves, local=False) as found:
        channel = await found.bearer("channel", CHANNEL)
        consumer = await found.bearer("consumer", CHANNEL, CONSUMER)
        mine = {"channel": CHANNEL, "consumer": CONSUMER}
        assert len((await ask(found, headers=channel, channel=CHANNEL))["items"]) == 6
        assert len((await ask(found, headers=consumer, **mine))["items"]) == 5
        secret = (await graves_of(found, "secret"))[0]
        theirs = (await graves_of(found, CHANNEL, OTHER))[0]
        for headers, refused in (
            (channel, [{}, {"channel": "secret"}]),
            (consumer, [{}, {"channel": CHANNEL}, {"channel": CHANNEL, "consumer": OTHER}]),
        ):
            for query in refused:
                for path in ("", "/count", "/clusters"):
                    problem(await found.client.get(LETTERS + path, params=query, headers=headers), 403)
            problem(await found.client.get(f"{LETTERS}/{secret}", headers=headers), 403)
            problem(await found.client.get(f"{LETTERS}/ingest:abc", headers=headers), 403)
        problem(await found.client.get(f"{LETTERS}/{theirs}", headers=consumer), 403)
        assert (await found.client.get(f"{LETTERS}/{theirs}", headers=channel)).status_code == 200


async def graves_of(found: Application, channel: str, consumer: str | None = None) -> list[str]:
    page = await found.system.deadletters.find(Filter.of(channel=channel, consumer=consumer))
    return [item.id for item in page.items]


async def test_a_message_of_a_dead_letter_channel_belongs_to_that_channel(bus: holdfast.Bus) -> None:
    """Whoever may read the channel that it came from has the job, and needs that token for the copy."""
    store = bus.partitions.all[0].backend
    await store.channels.create(GRAVEYARD)
    await subscribe(store, dead_letter=GRAVEYARD)
    await publish(store, "a")
    [job] = await claim(store)
    await bury(store, job)
    async with application(bus, local=False) as found:
        await found.token("admin")
        mine, keeper = await found.bearer("channel", CHANNEL), await found.bearer("reader", GRAVEYARD)
        [item] = (await ask(found, headers=keeper, channel=GRAVEYARD, kinds="stream"))["items"]
        assert (await ask(found, f"/{item['id']}", headers=keeper))["channel"] == CHANNEL
        assert (await ask(found, headers=mine, channel=CHANNEL, kinds="stream"))["items"] == []
        assert len((await ask(found, headers=mine, channel=CHANNEL))["items"]) == 1
        missing = f"{item['id'][:-1]}f"
        for headers in (mine, await found.bearer("channel", "beta"), await found.bearer("reader", "gbe.>")):
            for each in (item["id"], missing):
                problem(await found.client.get(f"{LETTERS}/{each}", headers=headers), 403)
        both = await found.bearer("reader")
        assert len((await ask(found, headers=both, channel=CHANNEL))["items"]) == 2
