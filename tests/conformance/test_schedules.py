"""Schedules: one event for each tick, whoever keeps time, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import failpoints
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import IdConflict, InvalidInput, NotFound, TooLarge, Unavailable
from holdfast.model.event import Event
from holdfast.upkeep import schedules
from holdfast.upkeep.schedules import Schedule
from holdfast.upkeep.ticks import Ticks
from kit import CHANNEL, MINUTE, Hooked, read_all

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NAME = "nightly"


def ticks(backend: Backend) -> Ticks:
    return Ticks(backend, "gbe", lambda channel, key: backend)


async def keep_time(backend: Backend, by: timedelta = timedelta(0)) -> None:
    """Move the clock, and publish everything that is due then."""
    await backend.advance(by)
    while await ticks(backend).run_once():
        continue


async def make(bus: Bus, name: str = NAME, channel: str = CHANNEL, **definition: Any) -> Schedule:
    return await bus.schedule(name, channel, **({"every": "1h", "data": {"n": 1}} | definition))


async def events(backend: Backend, channel: str = CHANNEL) -> list[Event]:
    return [entry.event for entry in await read_all(backend, channel)]


async def published(backend: Backend, channel: str = CHANNEL) -> list[str]:
    """The ticks that have an event, in the order of the log; each must be there once."""
    found = await events(backend, channel)
    assert len({event.id for event in found}) == len(found)
    return [event.headers.get("holdfast-tick", "run") for event in found]


def written(*times: datetime) -> list[str]:
    return [schedules.written(time) for time in times]


async def test_each_tick_has_one_event(backend: Backend, bus: Bus) -> None:
    made = await make(bus, type="report", key="k", headers={"a": "b"})
    first = made.next
    assert first == made.timing.anchor + HOUR
    await keep_time(backend, HOUR - MINUTE)
    assert await published(backend) == []
    await keep_time(backend, MINUTE)
    await keep_time(backend, HOUR)
    assert await published(backend) == written(first, first + HOUR)
    event = (await events(backend))[0]
    assert event.json() == {"n": 1}
    assert (event.type, event.key, event.time) == ("report", "k", first)
    assert event.source == f"holdfast:schedule:{NAME}"
    tick = schedules.written(first)
    assert event.headers == {"a": "b", "holdfast-schedule": NAME, "holdfast-tick": tick}
    assert event.id == f"{NAME}@{tick}.{made.incarnation}"
    [now] = await bus.schedules()
    assert (now.fired, now.last, now.next, now.error) == (2, first + HOUR, first + 2 * HOUR, "")


async def test_a_poll_keeps_time(backend: Backend, bus: Bus) -> None:
    await bus.subscribe(CHANNEL, "c")
    await make(bus, every="1s")
    await backend.advance(timedelta(seconds=1))
    bus.partitions.all[0].ticks._looked_at = -1.0  # as if it had looked a while ago
    assert await bus.poll(CHANNEL, "c") == [], "the step comes after the claim"
    assert [job.event.source for job in await bus.poll(CHANNEL, "c")] == [f"holdfast:schedule:{NAME}"]


@pytest.mark.concurrency
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("count", [8, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_hundred_who_keep_time_publish_each_tick_once(backend: Backend, bus: Bus, count: int) -> None:
    """A day of the store's clock, six hours at a time: ids are counted in the log, and none is missing."""
    makers = asyncio.Semaphore(8)

    async def made(number: int) -> Schedule:
        async with makers:
            return await make(bus, f"s{number}", every="6h", missed="all", jitter="5m", data=number)

    everyone = await asyncio.gather(*map(made, range(count)))
    others = [backend.fork() for _ in range(5)]
    for other in others:
        await other.open()

    async def contend(store: Backend) -> None:
        mine = ticks(store)
        while await store.records.due(schedules.prefix("gbe"), 1):
            await mine.run_once()

    for turn in range(1, 5):
        await backend.advance(6 * HOUR + (5 * MINUTE if turn == 1 else timedelta(0)))
        await asyncio.gather(*(contend(other) for other in others for _ in range(20)))
    ids = Counter([event.id for event in await events(backend)])
    expected = [
        each.event(each.timing.anchor + 6 * turn * HOUR).id for each in everyone for turn in range(1, 5)
    ]
    assert ids == Counter(expected)
    assert {each.fired for each in await bus.schedules()} == {4}
    for other in others:
        await other.close()


async def test_a_step_that_died_after_it_published_publishes_nothing_twice(
    backend: Backend, bus: Bus
) -> None:
    made = await make(bus)
    await backend.advance(HOUR)
    with failpoints.active("schedules.after_publish", "raise"), pytest.raises(failpoints.FailpointError):
        await ticks(backend).run_once()
    assert (await bus.schedules())[0].next == made.next
    await make(bus, data={"n": 2})
    await keep_time(backend)
    assert [event.json() for event in await events(backend)] == [{"n": 1}], "that tick had its event"
    await keep_time(backend, HOUR)
    assert [event.json() for event in await events(backend)] == [{"n": 1}, {"n": 2}]
    assert [each.next for each in await bus.schedules()] == [made.timing.anchor + 3 * HOUR]


async def test_of_several_ticks_some_of_which_were_published_each_is_there_once(
    backend: Backend, bus: Bus
) -> None:
    await make(bus, every="10s")
    await backend.advance(timedelta(seconds=20))
    with failpoints.active("schedules.after_publish", "raise"), pytest.raises(failpoints.FailpointError):
        await ticks(backend).run_once()
    await make(bus, every="10s", data={"n": 2})
    await keep_time(backend, timedelta(seconds=20))
    assert [event.json()["n"] for event in await events(backend)] == [1, 1, 2, 2]
    assert len(await published(backend)) == 4


@pytest.mark.dealt
@pytest.mark.parametrize(
    ("policy", "expected", "skipped"),
    [
        ({"missed": "skip"}, [6], 5),
        ({"missed": "once"}, [5, 6], 4),
        ({"missed": "all"}, [1, 2, 3, 4, 5, 6], 0),
        ({"missed": "all", "max_missed": 3}, [3, 4, 5, 6], 2),
    ],
    ids=["skip", "once", "all", "at most 3"],
)
async def test_ticks_that_nobody_was_there_for(
    backend: Backend, bus: Bus, policy: dict[str, Any], expected: list[int], skipped: int
) -> None:
    made = await make(bus, **policy)
    await keep_time(backend, 6 * HOUR + MINUTE / 2)
    anchor = made.timing.anchor
    assert await published(backend) == written(*(anchor + n * HOUR for n in expected))
    [now] = await bus.schedules()
    assert (now.fired, now.skipped, now.next) == (len(expected), skipped, anchor + 7 * HOUR)
    alerts = [event.json() for event in await events(backend, "gbe.events.system.error")]
    assert [(each["kind"], each["channel"], each["count"]) for each in alerts] == (
        [("missed_ticks", CHANNEL, skipped)] if skipped else []
    )


async def test_a_tick_in_time_is_published_whatever_the_policy(backend: Backend, bus: Bus) -> None:
    await make(bus, every="1s", missed="skip")
    await keep_time(backend, timedelta(seconds=30))
    assert len(await published(backend)) in (30, 31)


async def test_more_ticks_than_one_step_publishes_come_in_order(backend: Backend, bus: Bus) -> None:
    made = await make(bus, every="1m", missed="all")
    await keep_time(backend, 250 * MINUTE)
    anchor = made.timing.anchor
    assert await published(backend) == written(*(anchor + n * MINUTE for n in range(1, 251)))


async def test_a_paused_schedule_publishes_nothing_and_misses_nothing(backend: Backend, bus: Bus) -> None:
    made = await make(bus, missed="all")
    assert (await bus.pause_schedule(NAME, CHANNEL)).paused
    await keep_time(backend, 5 * HOUR)
    assert await published(backend) == []
    assert (await make(bus, missed="all", data={"n": 2})).paused, "a change does not resume it"
    resumed = await bus.resume_schedule(NAME, CHANNEL)
    assert (resumed.paused, resumed.next) == (False, made.timing.anchor + 6 * HOUR)
    assert await bus.resume_schedule(NAME, CHANNEL) == resumed
    await keep_time(backend, HOUR)
    assert await published(backend) == written(made.timing.anchor + 6 * HOUR)


async def test_the_same_definition_again_changes_nothing(backend: Backend, bus: Bus) -> None:
    made = await make(bus)
    await backend.advance(HOUR / 2)
    assert await make(bus) == made
    other = await make(bus, data={"n": 2}, jitter="1m")
    assert (other.next, other.timing.anchor, other.incarnation) == (
        made.next,
        made.timing.anchor,
        made.incarnation,
    )
    now = await backend.now()
    changed = await make(bus, every="2h")
    assert changed.next is not None
    assert timedelta(0) <= changed.next - now.replace(microsecond=0) - 2 * HOUR < MINUTE


async def test_a_schedule_that_is_made_anew_has_ticks_of_its_own(backend: Backend, bus: Bus) -> None:
    """Also where a clock goes back: no tick is swallowed by what its predecessor has published."""
    made = await make(bus)
    await keep_time(backend, HOUR)
    await bus.remove_schedule(NAME, CHANNEL)
    with pytest.raises(NotFound, match="there is no schedule 'nightly' of 'orders'"):
        await bus.remove_schedule(NAME, CHANNEL)
    assert await bus.schedules() == []
    again = await make(bus)
    assert again.incarnation != made.incarnation
    key = schedules.key("gbe", CHANNEL, NAME)
    back = replace(again, next=made.next)
    assert await backend.records.put(key, schedules.to_fields(back), again.revision, back.due)
    await keep_time(backend)
    ids = [event.id for event in await events(backend)]
    tick = schedules.written(made.timing.anchor + HOUR)
    assert ids == [f"{NAME}@{tick}.{each.incarnation}" for each in (made, again)]


@pytest.mark.dealt
@pytest.mark.parametrize("verb", ["pause", "remove", "change", "remake"])
async def test_a_step_that_read_before_a_change_undoes_nothing_of_it(
    backend: Backend, bus: Bus, verb: str
) -> None:
    await make(bus)
    await backend.advance(HOUR)
    wanted: list[Schedule] = []

    async def first(name: str, call: Any, *given: Any, **more: Any) -> Any:
        if name == "records.put" and not wanted:
            if verb == "pause":
                await bus.pause_schedule(NAME, CHANNEL)
            elif verb == "change":
                await make(bus, cron="0 3 * * *", every=None)
            else:
                await bus.remove_schedule(NAME, CHANNEL)
                if verb == "remake":
                    await make(bus, every="3h")
            wanted.extend([*await bus.schedules(), *[made] * (not await bus.schedules())])
        return await call(*given, **more)

    made = (await bus.schedules())[0]
    await Ticks(Hooked(backend, first), "gbe", lambda channel, key: backend).run_once()  # type: ignore[arg-type]
    assert wanted
    left = await bus.schedules()
    assert left == ([] if verb == "remove" else wanted)
    assert len(await published(backend)) == 1, "it was due before the change"


async def test_a_run_is_asked_for_and_repeated_under_its_id(backend: Backend, bus: Bus) -> None:
    made = await make(bus)
    await bus.pause_schedule(NAME, CHANNEL)
    one = await bus.run_schedule(NAME, CHANNEL, id="today")
    again = await bus.run_schedule(NAME, CHANNEL, id="today")
    assert (one.duplicate, again.duplicate, one.position) == (False, True, again.position)
    assert not (await bus.run_schedule(NAME, CHANNEL)).duplicate
    assert await published(backend) == ["run", "run"]
    assert (await events(backend))[0].headers["holdfast-run"] == "today"
    assert (await bus.schedules())[0].next == made.next
    await make(bus, data={"n": 2})
    with pytest.raises(IdConflict):
        await bus.run_schedule(NAME, CHANNEL, id="today")
    with pytest.raises(NotFound):
        await bus.run_schedule("other", CHANNEL)


async def test_a_channel_that_is_full_holds_back_its_own_schedules_only(backend: Backend, bus: Bus) -> None:
    await bus.subscribe(CHANNEL, "slow", max_depth=1)
    await bus.publish(CHANNEL, 0)
    made = await make(bus)
    await make(bus, "other", "elsewhere")
    await keep_time(backend, HOUR)
    assert len(await published(backend, "elsewhere")) == 1
    [held] = await bus.schedules(CHANNEL)
    assert (held.next, held.failures, held.error_at is not None) == (made.next, 1, True)
    assert "slow" in held.error
    assert await ticks(backend).run_once() == 0, "it is tried again after a pause"
    [job] = await bus.poll(CHANNEL, "slow")
    await bus.finalize(job, success=True)
    await keep_time(backend, timedelta(seconds=2))
    [freed] = await bus.schedules(CHANNEL)
    assert (freed.fired, freed.failures, freed.error) == (1, 0, "")


async def test_one_whose_event_is_refused_does_not_stop_the_others_of_its_channel(
    backend: Backend, bus: Bus
) -> None:
    for name in ("a", "b", "c"):
        await make(bus, name)
    await backend.advance(HOUR)

    async def refuse_b(name: str, call: Any, *given: Any, **more: Any) -> Any:
        if name == "log.publish" and any("b@" in event.id for event in given[1]):
            raise Unavailable("the store did not answer")
        return await call(*given, **more)

    store: Any = Hooked(backend, refuse_b)
    assert await Ticks(store, "gbe", lambda channel, key: store).run_once() == 3
    found = {each.name: (each.fired, each.error) for each in await bus.schedules()}
    assert found == {"a": (1, ""), "b": (0, "the store did not answer"), "c": (1, "")}


async def test_records_that_this_version_does_not_know_are_left_alone(backend: Backend, bus: Bus) -> None:
    made = await make(bus)
    fields = schedules.to_fields(made)
    strange: dict[str, dict[str, str]] = {
        "newer": fields | {"version": "2"},
        "torn": {"version": "1"},
        "empty": {},
        "times": fields | {"next": "tomorrow"},
        "zone": fields | {"next": "2026-01-01T00:00:00"},
        "numbers": fields | {"fired": "many"},
        "both": fields | {"cron": "* * * * *"},
    }
    due = await backend.now()
    for name, content in strange.items():
        assert await backend.records.put(schedules.key("gbe", CHANNEL, name), content, 0, due)
    odd = fields | {"tz": "Mars/Olympus", "cron": "0 3 * * *"}
    odd.pop("every")
    assert await backend.records.put(schedules.key("gbe", CHANNEL, "mars"), odd, 0, due)
    await keep_time(backend, HOUR)
    assert len(await published(backend)) == 1
    listed = {each.name: each for each in await bus.schedules()}
    assert set(listed) == {NAME, "mars"}
    assert "Mars/Olympus" in listed["mars"].error
    for name, content in strange.items():
        record = await backend.records.get(schedules.key("gbe", CHANNEL, name))
        assert record is not None
        assert record.fields == content
        await bus.remove_schedule(name, CHANNEL)
    with pytest.raises(NotFound):
        await bus.pause_schedule("torn", CHANNEL)


@pytest.mark.dealt
async def test_what_cannot_be_a_schedule_is_refused(bus: Bus) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "either cron or every": {"cron": "* * * * *"},
        "too often": {"every": "999ms"},
        "not shorter than the time between two ticks": {"jitter": "1h"},
        "tz 'UTC' is about cron": {"tz": "UTC"},
        "missed 'most' is unknown": {"missed": "most"},
        "max_missed 0": {"max_missed": 0},
        "only Holdfast writes": {"headers": {"Holdfast-Tick": "x"}},
        "priority 101": {"priority": 101},
        "is not a time zone": {"every": None, "cron": "0 3 * * *", "tz": "Mars/Olympus"},
        "never ticks": {"every": None, "cron": "0 0 31 2 *"},
        "bad minute": {"every": None, "cron": "60 * * * *"},
        "write five fields": {"every": None, "cron": "* * * * * *"},
        "no JSON value": {"data": object()},
    }
    for words, definition in wrong.items():
        with pytest.raises(InvalidInput, match=words):
            await make(bus, **definition)
    with pytest.raises(InvalidInput, match="schedule name 'Nightly' is not usable"):
        await make(bus, "Nightly")
    with pytest.raises(TooLarge, match="the limit is 65536"):
        await make(bus, data="x" * 70_000)
    assert await bus.schedules() == []


@pytest.mark.dealt
@pytest.mark.parametrize("data", [b"\x00\xff", "ä\x00€", {"a": [1, None]}, None], ids=repr)
async def test_any_data_is_published_as_it_was_given(backend: Backend, bus: Bus, data: Any) -> None:
    made = await make(bus, data=data, key="", headers={"k": "ü"})
    assert (await bus.schedules())[0] == made
    await keep_time(backend, HOUR)
    [event] = await events(backend)
    assert (event.data, event.key) == (made.content.data, "")


async def test_schedules_are_listed_by_when_they_are_due(
    backend: Backend, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.bus.schedules._PAGE", 3)
    for number in (3, 1, 5, 2, 4, 7, 6):
        await make(bus, f"s{number}", every=f"{number}h")
    await make(bus, "same", every="2h", channel="orders.eu")
    await bus.pause_schedule("s1", CHANNEL)
    found = [each.name for each in await bus.schedules()]
    assert sorted(found[:2]) == ["s2", "same"]
    assert found[2:] == ["s3", "s4", "s5", "s6", "s7", "s1"]
    assert [each.name for each in await bus.schedules("orders.eu")] == ["same"]
    assert await bus.schedules("none") == []


async def test_a_look_costs_what_is_due_and_not_what_exists(backend: Backend, bus: Bus) -> None:
    steps = list[str]()

    async def note(name: str, call: Any, *given: Any, **more: Any) -> Any:
        found = await call(*given, **more)
        steps.append(f"{name} {len(found)}" if name == "records.due" else name)
        return found

    for number in range(30):
        await make(bus, f"s{number}", every="2h")
    await make(bus, every="1h")
    noted: Any = Hooked(backend, note)
    mine = Ticks(noted, "gbe", lambda channel, key: noted)
    assert await mine.run_once() == 0
    assert steps == ["records.due 0"]
    await backend.advance(HOUR)
    steps.clear()
    assert await mine.run_once() == 1
    assert steps == ["records.due 1", "now", "log.publish", "records.put"]


@pytest.mark.dealt
async def test_a_jitter_is_the_same_for_everybody_and_within_its_bounds(backend: Backend, bus: Bus) -> None:
    made = await make(bus, jitter="30m")
    seen = await bus.scheduling.upcoming(made)
    assert seen == (await bus.schedules())[0].upcoming(await backend.now())
    late = [due - (made.timing.anchor + (n + 1) * HOUR) for n, due in enumerate(seen)]
    assert all(timedelta(0) <= each < HOUR / 2 for each in late)
    assert len(set(late)) == len(late)
    await keep_time(backend, seen[0] - await backend.now() - timedelta(seconds=1))
    assert await published(backend) == []
    await keep_time(backend, timedelta(seconds=2))
    assert await published(backend) == written(made.timing.anchor + HOUR)


@pytest.mark.dealt
async def test_a_preview_shows_ten_ticks_and_stores_nothing(bus: Bus) -> None:
    shown = await bus.scheduling.preview(NAME, CHANNEL, cron="0 3 * * *", tz="Europe/Berlin")
    assert len(shown) == 10
    assert all(time.tzinfo == UTC for time in shown)
    assert await bus.schedules() == []
    with pytest.raises(InvalidInput):
        await bus.scheduling.preview(NAME, CHANNEL, cron="0 0 30 2 *")
