"""Limits: what no backend could carry is refused by a typed error that names the value."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime, timedelta
from typing import Any

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import TooLarge
from holdfast.model.event import MAX_DATA, MAX_HEADERS, MAX_TEXT, Event
from holdfast.model.job import Job
from kit import CHANNEL, CONSUMER, claim_one, publish, read_all, subscribe

TOO_LONG = "999999999d"


async def refused(call: Awaitable[object], value: str) -> bool:
    """Whether the call was refused; then its message must name the value."""
    try:
        await call
    except holdfast.InvalidInput as error:
        return value in str(error) or pytest.fail(f"{error!r} does not name {value!r}")
    return False


def bad_events() -> list[tuple[Event, type[Exception], str]]:
    naive = datetime(2024, 1, 1)  # noqa: DTZ001 - that is the point
    return [
        (Event(b"x" * (MAX_DATA + 1), "big"), TooLarge, "'big'"),
        (Event(1, "x" * (MAX_TEXT + 1)), TooLarge, str(MAX_TEXT + 1)),
        (Event(1, "a", key="k" * (MAX_TEXT + 1)), TooLarge, "key"),
        (Event(1, "a", headers={str(n): "" for n in range(MAX_HEADERS + 1)}), TooLarge, str(MAX_HEADERS + 1)),
        (Event(1, "a", headers={"h": "x" * 20_000}), TooLarge, "20001"),
        (Event(1, "a\x00b"), holdfast.InvalidInput, r"'a\x00b'"),
        (Event(1, "a\nb"), holdfast.InvalidInput, r"'a\nb'"),
        (Event(1, "\ud800"), holdfast.InvalidInput, r"'\ud800'"),
        (Event(1, "a", source="s\x00"), holdfast.InvalidInput, r"'s\x00'"),
        (Event(1, "a", source=""), holdfast.InvalidInput, "'a'"),
        (Event(1, "a", type=""), holdfast.InvalidInput, "'a'"),
        (Event(1, "a", type="t\udfff"), holdfast.InvalidInput, r"'t\udfff'"),
        (Event(1, "a", key="\x7f"), holdfast.InvalidInput, r"'\x7f'"),
        (Event(1, "a", headers={"h\x00": "v"}), holdfast.InvalidInput, r"'h\x00'"),
        (Event(1, "a", headers={"h": "v\x00"}), holdfast.InvalidInput, r"'v\x00'"),
        (Event(1, "a", headers={"h": "\ud83d"}), holdfast.InvalidInput, r"'\ud83d'"),
        (Event(1, "a", headers={"h": 7}), holdfast.InvalidInput, "7"),  # type: ignore[dict-item]
        (Event(1, 7), holdfast.InvalidInput, "7"),  # type: ignore[arg-type]
        (Event(1, "a", time=naive), holdfast.InvalidInput, "2024-01-01"),
    ]


@pytest.mark.parametrize(("event", "error", "named"), bad_events())
async def test_bad_events_are_refused_and_their_batch_with_them(
    bus: Bus, event: Event, error: type[Exception], named: str
) -> None:
    with pytest.raises(error) as caught:
        await bus.publish_many(CHANNEL, [Event(1, "good"), event])
    assert named in str(caught.value)
    assert await bus.read(CHANNEL) == []


async def test_the_largest_event_passes(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    headers = {f"{n:03}": "ü" * 250 for n in range(MAX_HEADERS)}
    event = Event(
        b"x" * MAX_DATA, "i" * MAX_TEXT, "s" * MAX_TEXT, "t" * MAX_TEXT, "k" * MAX_TEXT, None, headers
    )
    await bus.publish_many(CHANNEL, [event])
    stored = (await claim_one(backend)).event
    assert (stored.data, stored.id, stored.headers) == (event.data, event.id, headers)


async def test_the_largest_event_dies_like_any_other(bus: Bus, backend: Backend) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    headers = {f"{n:03}": "x" * 250 for n in range(MAX_HEADERS)}
    event = Event(
        b"x" * MAX_DATA, "ü" * MAX_TEXT, "s" * MAX_TEXT, "t" * MAX_TEXT, "k" * MAX_TEXT, None, headers
    )
    await bus.publish_many(CHANNEL, [event])
    await bus.finalize(
        await claim_one(backend), success=False, error="\x00\ud800" + "e" * 9000, terminal=True
    )
    assert len(await read_all(backend, "dead")) == 1


@pytest.mark.parametrize(
    "data",
    [object(), {1, 2}, float("nan"), {"a": float("inf")}, 10**5000, {("a",): 1}, "\ud800"],
    ids=lambda data: type(data).__name__,
)
async def test_data_that_is_no_json_value_is_refused(bus: Bus, data: Any) -> None:
    with pytest.raises(holdfast.InvalidInput):
        await bus.publish(CHANNEL, data)


async def test_deep_and_huge_json_is_refused_or_carried_never_fatal(bus: Bus, backend: Backend) -> None:
    deep: Any = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(holdfast.InvalidInput):
        await bus.publish(CHANNEL, deep)
    while deep:
        [deep] = deep  # taken apart step by step: the interpreter itself would fall into it
    await subscribe(backend)
    for number, raw in enumerate([b"[" * 200_000 + b"]" * 200_000, b"1" * 100_000, b"\xff{}", b"{", b""]):
        await bus.publish(CHANNEL, raw, id=f"raw-{number}")
        job: Job = await claim_one(backend)
        assert job.event.data == raw
        with pytest.raises(holdfast.InvalidInput, match=f"raw-{number}"):
            job.event.json()


async def test_deliveries_out_of_range_are_refused(bus: Bus) -> None:
    with pytest.raises(holdfast.InvalidInput, match="2024-01-01"):
        await bus.publish(CHANNEL, 1, at=datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point
    for priority in (101, -101, 2**63):
        with pytest.raises(holdfast.InvalidInput, match=str(priority)):
            await bus.publish(CHANNEL, 1, priority=priority)
    with pytest.raises(TooLarge, match="100001"):
        await bus.publish_many(CHANNEL, [Event(1)] * 100_001)


async def test_a_connection_of_some_other_library_is_refused_by_name(bus: Bus, backend: Backend) -> None:
    with pytest.raises(holdfast.InvalidInput, match="connection"):
        await bus.publish(CHANNEL, 1, connection=object())
    assert await read_all(backend) == []


@pytest.mark.parametrize("option", ["lease", "expires_after", "backoff"])
async def test_a_policy_is_refused_or_works_however_long_its_times(
    bus: Bus, backend: Backend, option: str
) -> None:
    if not await refused(bus.subscribe(CHANNEL, CONSUMER, **{option: TOO_LONG}), TOO_LONG):
        await publish(backend, "a")
        await bus.finalize(await claim_one(backend), success=False, error="no")


@pytest.mark.parametrize("verb", ["extend", "snooze"])
async def test_a_lease_goes_on_or_waits_for_a_time_that_exists(bus: Bus, backend: Backend, verb: str) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    for by in ("-1s", "soon", timedelta(seconds=-1), float("nan")):
        with pytest.raises(holdfast.InvalidInput):
            await getattr(bus, verb)(job, by)
    await refused(getattr(bus, verb)(job, TOO_LONG), TOO_LONG)


async def test_a_position_out_of_range_is_refused_or_beyond_everything(bus: Bus) -> None:
    [receipt] = await bus.publish_many(CHANNEL, [Event(1)])
    beyond = "-".join("f" * len(part) for part in receipt.position.split("-"))
    if not await refused(bus.read(CHANNEL, after=beyond), beyond):
        assert await bus.read(CHANNEL, after=beyond) == []


@pytest.mark.parametrize("options", [{"max_atempts": 3}, {"lease": "0s"}, {"max_depth": 0}, {"backoff": []}])
async def test_bad_options_are_refused_by_name(bus: Bus, backend: Backend, options: dict[str, Any]) -> None:
    with pytest.raises(holdfast.InvalidInput, match=next(iter(options))):
        await bus.subscribe(CHANNEL, CONSUMER, **options)
    assert await backend.channels.names() == []
