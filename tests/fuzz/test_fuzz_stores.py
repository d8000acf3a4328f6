"""The stores: what is published comes back as it was, and what foreign clients wrote hinders nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count

import nats
import pytest
import redis
from hostile import BYTES, FIELDS, TEXTS, TIMES, VALUES, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.redis import RedisBackend
from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.event import Event, check_event
from holdfast.wiring import backend as connect_backend
from kit import claim, subscribe

SAFE = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=40)
EVENTS = st.builds(
    Event,
    BYTES,
    st.just(""),
    SAFE,
    SAFE,
    st.none() | SAFE,
    st.none() | TIMES,
    st.dictionaries(SAFE, SAFE, max_size=3),
)
CHANNELS = (f"c{number}" for number in count())
"""A new one for each example."""


@pytest.fixture
async def backend(url: str) -> AsyncIterator[Backend]:
    opened = connect_backend(url)
    await opened.open()
    yield opened
    await opened.close()


async def columns(backend: Backend, channel: str, after: str | None) -> list[tuple[object, ...]]:
    """What a bulk reader gets after a position."""
    extent, found = await backend.log.extent(channel), list[tuple[object, ...]]()
    if extent.last is not None:
        async for page in backend.log.pages(channel, after, extent.last, 100):
            times = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=each) for each in page.times]
            found += zip(
                page.data,
                page.ids,
                page.sources,
                page.types,
                page.keys,
                times,
                map(dict, page.headers),
                strict=True,
            )
    return found


@fuzzed(0.5, shrink=False)
@given(st.data())
async def test_events_come_back_as_they_were_published(backend: Backend, data: st.DataObject) -> None:
    events = data.draw(st.lists(EVENTS, min_size=1, max_size=5))
    kept = []
    for number, event in zip(count(), events):
        try:
            kept.append(
                check_event(
                    event._replace(id=f"{number}", time=event.time or datetime(2026, 7, 1, tzinfo=UTC))
                )
            )
        except ValueError:
            continue
    channel = next(CHANNELS)
    if not kept:
        return
    receipts = await backend.log.publish(channel, kept)
    assert [receipt.id for receipt in receipts] == [event.id for event in kept]
    read = await backend.log.read(channel, None, 10)
    assert [entry.event._replace(headers=dict(entry.event.headers)) for entry in read] == [
        event._replace(headers=dict(event.headers)) for event in kept
    ]
    assert await columns(backend, channel, None) == [(*event[:6], dict(event.headers)) for event in kept]
    assert all(receipt.duplicate for receipt in await backend.log.publish(channel, kept))


@pytest.fixture
async def foreign_redis(empty_redis: str) -> AsyncIterator[tuple[RedisBackend, redis.Redis]]:
    opened = RedisBackend(empty_redis)
    await opened.open()
    with redis.Redis.from_url(empty_redis) as client:
        yield opened, client
    await opened.close()


@fuzzed(0.5, shrink=False)
@given(st.dictionaries(FIELDS, VALUES, min_size=1, max_size=5))
@example({b"at": b"soon", b"priority": b"high", b"data": b"1"})
@example({b"at": b"9" * 400, b"priority": b"-" + b"9" * 400, b"key": b"k"})
@example({b"at": b"nan", b"priority": b"inf"})
async def test_whatever_is_appended_to_a_stream_of_redis_is_delivered(
    foreign_redis: tuple[RedisBackend, redis.Redis], fields: dict[bytes, bytes]
) -> None:
    backend, client = foreign_redis
    channel = next(CHANNELS)
    await subscribe(backend, channel=channel)
    await backend.log.publish(channel, [Event(b"1", "before")])
    client.xadd(channel, fields)
    await backend.log.publish(channel, [Event(b"1", "after")])
    read = [entry.event for entry in await backend.log.read(channel, None, 10)]
    assert len(read) == 3
    assert [event.id for event in (read[0], read[2])] == ["before", "after"]
    assert await columns(backend, channel, None) == [(*event[:6], dict(event.headers)) for event in read]
    assert {"before", "after"} <= {job.event.id for job in await claim(backend, channel=channel)}


@pytest.fixture
async def foreign_nats(empty_nats: str) -> AsyncIterator[tuple[NatsBackend, Client]]:
    opened = NatsBackend(empty_nats)
    await opened.open()
    async with await nats.connect(empty_nats) as client:
        yield opened, client
    await opened.close()


async def send_raw(client: Client, channel: str, headers: bytes, data: bytes) -> None:
    """Publish with headers as they are: nats-py would put them right."""
    reply = client.new_inbox()
    heard = await client.subscribe(reply)
    sizes = f"{len(headers)} {len(headers) + len(data)}"
    await client._send_command(f"HPUB {channel} {reply} {sizes}\r\n".encode() + headers + data + b"\r\n")
    await client._flush_pending()
    assert b"seq" in (await heard.next_msg(timeout=60)).data
    await heard.unsubscribe()


def plain(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode("utf-8", "surrogatepass")


LINES = st.tuples(
    st.one_of(
        st.sampled_from(
            ["ce-id", "ce-time", "Holdfast-Parts", "Holdfast-Publish", "Holdfast-Headers", "Status", "trace"]
        ),
        SAFE,
    ),
    st.one_of(
        SAFE, st.sampled_from(["-5", "1", "99999", "zz", "a b", "a.*.>", "0123456789abcdef", "%00%ff"])
    ),
).map(": ".join)


@fuzzed(0.5, shrink=False)
@given(st.lists(LINES, max_size=4).map(lambda lines: plain(*lines)), BYTES)
@example(plain("Holdfast-Parts: 99999"), b"x")
@example(plain("Holdfast-Parts: 1"), b"x")
@example(plain("Holdfast-Publish: a b"), b"x")
@example(plain("Holdfast-Publish: 0123456789abcdef"), b"x")
@example(plain("ce-id: forged", "Holdfast-Publish: 0123456789abcdef"), b"x")
@example(plain("Holdfast-At: 999999999999999999", "Holdfast-Priority: 999999999999999999"), b"x")
@example(b"junk", b"x")
@example(b"NATS/1.0 503\r\n\r\n", b"x")
@example(b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n", b"x")
async def test_whatever_is_published_to_a_subject_of_nats_is_delivered(
    foreign_nats: tuple[NatsBackend, Client], headers: bytes, data: bytes
) -> None:
    backend, client = foreign_nats
    channel = next(CHANNELS)
    await subscribe(backend, channel=channel)
    await backend.log.publish(channel, [Event(b"1", "before")])
    await send_raw(client, channel, headers, data)
    await backend.log.publish(channel, [Event(b"1", "after")])
    async with asyncio.timeout(60):
        read = [entry.event for entry in await backend.log.read(channel, None, 10)]
        assert len(read) == 3
        assert [event.id for event in (read[0], read[2])] == ["before", "after"]
        assert await columns(backend, channel, None) == [(*event[:6], dict(event.headers)) for event in read]
        assert {"before", "after"} <= {job.event.id for job in await claim(backend, channel=channel)}
    assert read[1].data == data


@fuzzed(0.5, shrink=False)
@given(TEXTS, TEXTS)
async def test_any_place_to_go_on_from_is_read_or_refused(backend: Backend, after: str, until: str) -> None:
    await backend.log.publish("orders", [Event(1, "a")])
    for ask in (
        backend.log.read("orders", after, 5),
        backend.log.cuts("orders", after, 5, 1, until),
        backend.log.behind("orders", after, 5),
    ):
        with suppress(InvalidInput):
            await ask


@fuzzed(0.15, shrink=False)
@given(TEXTS, TEXTS)
@example("\ud800", "\ud800")
@example("\0", "\0")
async def test_any_text_in_any_question_is_answered_or_refused(
    backend: Backend, text: str, other: str
) -> None:
    """Channels and consumers are checked before a store is asked; everything else reaches it."""
    await subscribe(backend)
    lock = await backend.locks.acquire("fuzz", "me", timedelta(minutes=1))
    questions: list[Callable[[], Awaitable[object]]] = [
        lambda: backend.channels.set_display("orders", "billing", text),
        lambda: backend.channels.set_display("orders", None, text),
        lambda: backend.leases.find_jobs("orders", text, other),
        lambda: backend.leases.cancel("orders", text, other, None),
        lambda: backend.leases.job("orders", "billing", text),
        lambda: backend.leases.requeue("orders", "billing", text),
        lambda: backend.deadletters.letter("orders", "billing", text),
        lambda: backend.deadletters.revive("orders", "billing", [text], None),
        lambda: backend.deadletters.purge("orders", "billing", [text]),
        lambda: backend.deadletters.page(DeadFilter(reason=text, fingerprint=other), None, 5),
        lambda: backend.deadletters.page(DeadFilter(kind=text, text=other), text, 5),
        lambda: backend.records.get(text),
        lambda: backend.records.put(f"gbe.state.x.{text}", {"a": other}, 0),
        lambda: backend.records.put("gbe.state.x.y", {other: text}, 0),
        lambda: backend.records.due(text, 5),
        lambda: backend.locks.acquire(text, other, timedelta(seconds=1)),
        lambda: backend.leases.claim("orders", "billing", 1, text),
    ]
    for number, question in enumerate(questions):
        try:
            await question()
        except HoldfastError:
            continue
        except Exception as error:
            raise AssertionError(f"question {number} with {text[:50]!r} and {other[:50]!r}") from error
    assert lock is None or await backend.locks.release(lock)
