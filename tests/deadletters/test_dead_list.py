"""The one list and its counts: exact, the latest first, page by page, all partitions together."""

from __future__ import annotations

import asyncio
import base64
import zlib
from datetime import timedelta

import pytest
from dead_kit import BILLING, JOBS, SECOND, dead, die, fail, found, later, names, store, subscribe, work

import holdfast
from holdfast.deadletters import DeadLetters, Filter
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.tasks import Tasks, TaskType
from kit import CHANNEL, CONSUMER


async def test_every_consumer_has_its_exact_count_by_reason(each: holdfast.Bus) -> None:
    letters = DeadLetters(each)
    await subscribe(each, max_attempts=1)
    await subscribe(each, "audit")
    await die(each, "a", "b")
    await die(each, "c", terminal=False)
    await store(each).channels.set_display(CHANNEL, None, "Order Events")
    await store(each).channels.set_display(CHANNEL, CONSUMER, "Billing Service")
    audit, billing = await letters.status()
    assert (audit.channel_name, audit.consumer_name, audit.dead, audit.reasons) == (
        "Order Events",
        "audit",
        0,
        {},
    )
    assert (billing.channel, billing.consumer, billing.consumer_name) == (
        CHANNEL,
        CONSUMER,
        "Billing Service",
    )
    assert (billing.dead, billing.reasons) == (3, {"max_attempts": 1, "terminal": 2})


async def test_two_stores_are_one_list(two: holdfast.Bus) -> None:
    letters = DeadLetters(two)
    await subscribe(two)
    ids = [f"o-{number}" for number in range(12)]
    for name in ids:
        await die(two, name)
    items = await found(letters)
    assert {item.partition for item in items} == {0, 1}
    assert [item.event_id for item in items] == ids[::-1]
    for limit in (1, 2, 5):
        assert await names(letters, JOBS, limit) == ids[::-1]
    [billing] = await letters.status()
    assert (billing.dead, (await letters.count(JOBS)).number) == (12, 12)
    [cluster] = await letters.clusters()
    assert (cluster.count, cluster.sample.event_id, cluster.pattern) == (12, "o-11", "boom")
    for item in items:
        assert (await letters.show(item.id)).item == item


async def test_many_that_died_at_once_are_each_listed_once(two: holdfast.Bus) -> None:
    letters = DeadLetters(two)
    await subscribe(two)
    events = [holdfast.Event({}, f"o-{number}") for number in range(40)]
    await two.publish_many(CHANNEL, events)
    await fail(two)
    for limit in (3, 7):
        listed = await names(letters, JOBS, limit)
        assert sorted(listed) == sorted(event.id for event in events)


async def test_what_leaves_between_two_pages_hides_nothing(two: holdfast.Bus) -> None:
    letters = DeadLetters(two)
    await subscribe(two)
    for number in range(12):
        await die(two, f"o-{number:02}")
    page = await letters.find(JOBS, None, 5)
    taken = page.items[-1]
    assert await store(two, taken.partition).deadletters.revive(
        CHANNEL, CONSUMER, [taken.job.partition("@")[0]]
    ) == [True]
    await die(two, "new")
    rest = []
    after = page.after
    while after is not None:
        page = await letters.find(JOBS, after, 5)
        rest, after = rest + [item.event_id for item in page.items], page.after
    assert rest == [f"o-{number:02}" for number in range(6, -1, -1)]


async def test_each_filter_means_what_it_says(bus: holdfast.Bus, letters: DeadLetters) -> None:
    await subscribe(bus, max_attempts=1)
    await subscribe(bus, "mailer", "mail")
    await die(bus, "a", error=ValueError("no route to host 17"))
    middle = await store(bus).now()
    await die(bus, "b", error=KeyError("total"), terminal=False)
    await die(bus, "c", error=ValueError("no route to host 4"), consumer="mailer", channel="mail")
    cluster = (await letters.clusters("mail", "mailer"))[0].fingerprint

    async def meant(**words: object) -> list[str]:
        wanted = Filter.of(kinds=["job"], **words)
        listed = await names(letters, wanted)
        assert (await letters.count(wanted)) == (len(listed), True)
        return listed

    assert await meant() == ["c", "b", "a"]
    assert await meant(channel="mail") == ["c"]
    assert await meant(channel=CHANNEL, consumer=CONSUMER) == ["b", "a"]
    assert await meant(reason="max_attempts") == ["b"]
    assert await meant(kind="ValueError") == ["c", "a"]
    assert await meant(fingerprint=cluster) == ["c", "a"]
    assert await meant(channel=CHANNEL, fingerprint=cluster) == ["a"]
    assert await meant(since=middle) == ["c", "b"]
    assert await meant(until=middle) == ["a"]
    assert await meant(text="ROUTE to") == ["c", "a"]
    assert await meant(text="ROUTE to", channel=CHANNEL) == ["a"]
    assert await meant(text="nowhere") == []


@pytest.mark.parametrize(
    "words",
    [
        {"channel": "NO"},
        {"consumer": "a b"},
        {"kinds": ["letters"]},
        {"text": "x" * 501},
        {"text": "a\x00b"},
        {"text": "a\ud800"},
        {"colour": "red"},
        {"reason": 7},
    ],
)
def test_a_filter_that_cannot_be_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Filter.of(**words)  # type: ignore[arg-type]


async def test_a_place_that_no_page_gave_is_refused(bus: holdfast.Bus, letters: DeadLetters) -> None:
    packed = (b"", b"{", b"{}", b'{"job@0":1}', b'{"job@0":["nonsense"]}', b" " * 200_000 + b"{}")
    places = [base64.urlsafe_b64encode(zlib.compress(each)).decode().rstrip("=") for each in packed]
    for after in ("x", "e30", "eyJqb2JAMCI6MX0", "ü", *places):
        with pytest.raises(InvalidInput):
            await letters.find(JOBS, after)
    for limit in (0, 1001):
        with pytest.raises(InvalidInput):
            await letters.find(JOBS, None, limit)


async def test_one_is_shown_with_its_event_and_every_error(bus: holdfast.Bus, letters: DeadLetters) -> None:
    await subscribe(bus, max_attempts=2, backoff=["1s"])
    await bus.publish(CHANNEL, {"total": 3}, id="a", key="k", headers={"h": "1"})
    await fail(bus, error=RuntimeError("first"), terminal=False)
    await later(bus, 2 * SECOND)
    await fail(bus, error=RuntimeError("second"), terminal=False)
    [item] = await found(letters)
    assert (item.reason, item.error, item.error_kind, item.attempts) == (
        "max_attempts",
        "second",
        "RuntimeError",
        2,
    )
    shown = (await letters.show(item.id)).to_json()
    assert (shown["data"], shown["key"], shown["headers"]) == ({"total": 3}, "k", {"h": "1"})
    assert [error["error"] for error in shown["errors"]] == ["first", "second"]
    assert "original" not in shown


async def test_what_is_not_dead_is_not_found(bus: holdfast.Bus, letters: DeadLetters) -> None:
    await subscribe(bus)
    await die(bus, "a")
    [item] = await found(letters)
    await bus.requeue(CHANNEL, CONSUMER, item.job)
    await work(bus)
    missing = [item.id, f"job:{CHANNEL}:{CONSUMER}:999999", f"job:{CHANNEL}:nobody:1", "job:nowhere:x:1"]
    for name in [*missing, f"{item.id}@1", "ingest:abc", "stream:gbe._deadletter.mail:0001"]:
        with pytest.raises(NotFound):
            await letters.show(name)


async def test_messages_of_dead_letter_channels_are_in_the_list(each: holdfast.Bus) -> None:
    letters = DeadLetters(each)
    tasks = Tasks(each, types={"mail": TaskType(timedelta(minutes=1), max_retries=0)})
    for name in ("t-1", "t-2", "t-3"):
        await tasks.submit("mail", {"to": name}, id=name)
        [task] = await tasks.claim("mail")
        await tasks.fail(task, f"no route for {name}")
        await later(each)
    messages = await found(letters, Filter.of(kinds=["stream"]))
    assert [item.event_id for item in messages] == ["t-3", "t-2", "t-1"]
    first = messages[-1]
    assert (first.channel, first.consumer, first.reason, first.error) == (
        "gbe.tasks.mail.queue",
        "workers",
        "max_attempts",
        "no route for t-1",
    )
    assert (await letters.show(first.id)).to_json()["data"] == {"to": "t-1"}
    assert await names(letters, Filter.of(kinds=["stream"]), 1) == ["t-3", "t-2", "t-1"]
    assert await names(letters, Filter.of(kinds=["stream"], text="T-2")) == ["t-2"]
    until = messages[1].died_at
    assert await names(letters, Filter.of(kinds=["stream"], until=until)) == ["t-1"]
    assert await names(letters, Filter.of(kinds=["stream"], since=until)) == ["t-3", "t-2"]
    everything = await found(letters, Filter(), 2)
    assert [item.event_id for item in everything] == ["t-3", "t-3", "t-2", "t-2", "t-1", "t-1"]
    assert {item.kind for item in everything} == {"job", "stream"}


async def test_a_long_dead_letter_channel_is_read_from_its_end(
    bus: holdfast.Bus, letters: DeadLetters
) -> None:
    events = [holdfast.Event({}, f"m-{number:04}") for number in range(2500)]
    await bus.publish_many("gbe._deadletter.mail", events)
    latest = [event.id for event in reversed(events)]
    page = await letters.find(Filter.of(kinds=["stream"]), None, 150)
    again = await letters.find(Filter.of(kinds=["stream"]), page.after, 150)
    assert [item.event_id for item in page.items + again.items] == latest[:300]
    assert await letters.count(Filter.of(kinds=["stream"])) == (2500, True)
    assert await names(letters, Filter.of(kinds=["stream"], text="nowhere")) == []


async def test_counts_are_right_while_many_die_and_leave(each: holdfast.Bus) -> None:
    await subscribe(each)
    await each.publish_many(CHANNEL, [holdfast.Event({}, f"o-{number}") for number in range(60)])
    await asyncio.gather(fail(each), fail(each))
    assert await dead(each) == 60
    items = await found(DeadLetters(each), BILLING)
    gone = [item.job for item in items[:20]]
    await asyncio.gather(
        store(each).deadletters.revive(CHANNEL, CONSUMER, gone[:10]),
        store(each).deadletters.purge(CHANNEL, CONSUMER, gone[5:]),
    )
    assert await dead(each) == 40
    assert await DeadLetters(each).verify() == []
