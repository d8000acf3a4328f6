"""The sweeper: stuck work, retention that waits for whoever needs the log, reports and alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.errors import LockLost, Overloaded
from holdfast.model.event import DEFAULT_SOURCE, Event
from holdfast.model.states import State
from holdfast.upkeep.announcements import Alert, Announcement, Retried, Swept
from holdfast.upkeep.rules import DeadConsumers, Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    Hooked,
    abandon,
    bury,
    claim,
    claim_one,
    complete,
    publish,
    state,
    subscribe,
)

DAY = timedelta(days=1)
RULES = Rules(retention={CHANNEL: Keep(max_age=DAY)}, dead_consumers=DeadConsumers())


def sweeper(backend: Backend, owner: str = "tester", **rules: Any) -> Sweeper:
    return Sweeper(backend, Rules(**{"retention": RULES.retention, **rules}), owner)


async def sweep(backend: Backend, **rules: Any) -> Swept:
    report = await sweeper(backend, **rules).run_once()
    assert report is not None
    return report


async def told(backend: Backend, what: type[Announcement]) -> list[Any]:
    """The system events of a kind, parsed by their schema."""
    entries = await backend.log.read(f"gbe.events.system.{what.topic}", None, 100)
    return [what.model_validate_json(entry.event.data) for entry in entries]


async def test_stuck_work_goes_back_to_its_queue_and_is_told(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=2)
    await publish(backend, "a")
    await claim_one(backend)
    await backend.advance(LEASE)
    report = await sweep(backend)
    assert (report.retried, report.buried) == (1, 0)
    assert await state(backend, "a") is State.READY
    [retried] = await told(backend, Retried)
    assert (retried.channel, retried.consumer, retried.event_id) == (CHANNEL, CONSUMER, "a")
    assert (retried.retry_count, retried.max_retries, retried.worker) == (1, 2, "tester")


async def test_exhausted_work_is_buried_and_alerts(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=1)
    await publish(backend, "a")
    await claim_one(backend)
    await backend.advance(LEASE)
    assert (await sweep(backend)).buried == 1
    assert await state(backend, "a") is State.DEAD
    [alert] = await told(backend, Alert)
    assert (alert.kind, alert.event_id, alert.consumer) == ("exhausted", "a", CONSUMER)


async def test_what_was_given_up_is_told_once_whoever_moved_it(backend: Backend) -> None:
    """Every worker takes steps of the lifecycle, so that a sweep seldom finds what is stuck by itself."""
    await subscribe(backend, max_abandonments=1)
    for event_id in ("before the first sweep", "between two of them"):
        await publish(backend, event_id)
        await claim_one(backend)
        assert (await abandon(backend)).buried == 1
        for _ in range(2):
            assert (await sweep(backend)).buried == 0
    alerts = await told(backend, Alert)
    assert [alert.kind for alert in alerts] == ["exhausted"] * 2
    assert [alert.event_id for alert in alerts] == ["before the first sweep", "between two of them"]


async def test_what_an_operator_or_a_handler_gave_up_is_no_alert(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    await sweep(backend)
    assert await told(backend, Alert) == []


async def test_work_that_merely_waits_is_not_stuck(backend: Backend) -> None:
    """Five minutes of backlog must not spend a retry."""
    await subscribe(backend)
    await publish(backend, "a", "b")
    await backend.advance(timedelta(hours=20))
    assert (await sweep(backend)).retried == 0
    assert [(job.attempt, job.abandonments) for job in await claim(backend)] == [(1, 0), (1, 0)]


async def test_every_sweep_leaves_a_report(backend: Backend) -> None:
    first, second = await sweep(backend), await sweep(backend)
    assert await told(backend, Swept) == [first, second]
    assert second.token > first.token


async def test_old_events_are_trimmed_and_young_ones_stay(backend: Backend) -> None:
    await publish(backend, "old-1", "old-2")
    await backend.advance(DAY)
    await publish(backend, "young")
    report = await sweep(backend)
    assert report.trimmed == {CHANNEL: 2}
    assert [entry.event.id for entry in await backend.log.read(CHANNEL, None, 10)] == ["young"]


async def test_channels_without_a_rule_are_kept(backend: Backend) -> None:
    await publish(backend, "a")
    await backend.advance(100 * DAY)
    assert (await sweep(backend, retention={"other.*": Keep(max_age=DAY)})).trimmed == {}
    assert len(await backend.log.read(CHANNEL, None, 10)) == 1


async def test_the_most_specific_rule_decides(backend: Backend) -> None:
    for channel in ("gbe.events.audit.change", "gbe.events.api.call"):
        await publish(backend, "a", channel=channel)
    await backend.advance(2 * DAY)
    keep = {"gbe.>": Keep(DAY), "gbe.events.*.change": Keep(7 * DAY), "gbe.events.*.*": Keep(DAY)}
    assert (await sweep(backend, retention=keep)).trimmed == {"gbe.events.api.call": 1}


async def test_nothing_is_trimmed_that_a_stream_consumer_has_not_made_durable(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, "archiver")
    first, *_ = await publish(backend, "a", "b", "c")
    await backend.advance(DAY)
    report = await sweep(backend)
    assert report.trimmed == {}
    [held] = report.held
    assert (held.channel, held.consumer, held.events) == (CHANNEL, "archiver", 3)
    assert held.age_seconds >= DAY.total_seconds()
    assert "held_back" in [alert.kind for alert in await told(backend, Alert)]

    assert await backend.cursors.move(CHANNEL, "archiver", None, first.position)
    assert (await sweep(backend)).trimmed == {CHANNEL: 1}
    assert [entry.event.id for entry in await backend.log.read(CHANNEL, None, 10)] == ["b", "c"]


async def test_nothing_is_trimmed_that_a_worker_consumer_has_not_finished(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "done", "waiting", "behind it")
    assert await complete(backend, await claim_one(backend))
    await backend.advance(2 * DAY)
    report = await sweep(backend)
    assert report.trimmed == {CHANNEL: 1}
    assert [held.consumer for held in report.held] == [CONSUMER]
    assert [job.event.id for job in await claim(backend)] == ["waiting", "behind it"]


async def test_a_held_trim_alerts_once_while_it_lasts(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, "archiver")
    await publish(backend, "a")
    await backend.advance(DAY)
    one = sweeper(backend, lag_age=timedelta(days=30))
    for _ in range(3):
        await one.run_once()
    assert [alert.kind for alert in await told(backend, Alert)] == ["held_back"]


async def test_an_alert_is_raised_once_an_hour_whoever_raises_it(backend: Backend) -> None:
    """A restarted sweeper, or another one, does not tell again what the store was told this hour."""
    await backend.cursors.attach(CHANNEL, "archiver")
    await publish(backend, *map(str, range(5)))
    for more in ("a", "b"):
        await sweep(backend, lag_events=4)
        await publish(backend, more)
    assert [alert.count for alert in await told(backend, Alert)] == [5]
    await backend.advance(timedelta(hours=1))
    await sweep(backend, lag_events=4)
    assert [alert.count for alert in await told(backend, Alert)] == [5, 7]


async def test_a_consumer_far_behind_alerts_before_its_events_are_old(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, "archiver")
    await publish(backend, *map(str, range(5)))
    await sweep(backend, lag_events=4)
    [alert] = await told(backend, Alert)
    assert (alert.kind, alert.consumer, alert.count) == ("lag", "archiver", 5)


async def test_a_full_channel_refuses_until_there_is_room(backend: Backend) -> None:
    keep = {CHANNEL: Keep(max_age=DAY, max_bytes=100_000, on_full="refuse")}
    await backend.log.publish(CHANNEL, [Event(b"x" * 10_000, str(number)) for number in range(40)])
    report = await sweep(backend, retention=keep)
    assert report.full == [CHANNEL]
    assert [alert.kind for alert in await told(backend, Alert)] == ["full"]
    with pytest.raises(Overloaded, match="max_bytes"):
        await publish(backend, "one more")
    await backend.advance(DAY)
    assert (await sweep(backend, retention=keep)).full == []
    assert len(await publish(backend, "one more")) == 1


async def test_what_it_has_to_tell_does_not_keep_it_from_making_room(backend: Backend) -> None:
    """The channel that it tells on can be the one that is full."""
    system = f"gbe.events.system.{Retried.topic}"
    keep = {system: Keep(max_age=DAY, max_bytes=100_000, on_full="refuse")}
    await backend.log.publish(system, [Event(b"x" * 10_000, str(number)) for number in range(40)])
    assert (await sweep(backend, retention=keep)).full == [system]
    await backend.advance(DAY)
    await subscribe(backend)
    await publish(backend, "a")
    await claim_one(backend)
    await backend.advance(LEASE)
    report = await sweep(backend, retention=keep)
    assert (report.retried, report.trimmed, report.full) == (1, {system: 40}, [])
    assert [retried.event_id for retried in await told(backend, Retried)] == ["a"]


async def test_a_chore_that_has_no_room_does_not_keep_it_from_making_some(backend: Backend) -> None:
    async def chore() -> int:
        raise Overloaded("no room to tell")

    await publish(backend, "old")
    await backend.advance(DAY)
    with pytest.raises(Overloaded, match="no room"):
        await Sweeper(backend, RULES, "tester", chores={"chore": chore}).run_once()
    assert await backend.log.read(CHANNEL, None, 10) == []


async def test_drop_oldest_drops_what_nobody_has_read_and_says_so(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, "archiver")
    await backend.log.publish(CHANNEL, [Event(b"x" * 10_000, str(number)) for number in range(40)])
    keep = {CHANNEL: Keep(max_bytes=200_000, on_full="drop_oldest")}
    report = await sweep(backend, retention=keep)
    left = [int(entry.event.id) for entry in await backend.log.read(CHANNEL, None, 100)]
    assert report.dropped == {CHANNEL: 40 - len(left)}
    assert left == list(range(left[0], 40))
    assert 5 <= len(left) <= 35  # sizes are estimates
    assert [alert.kind for alert in await told(backend, Alert)] == ["dropped"]


async def test_drop_oldest_leaves_unfinished_jobs_alone(backend: Backend) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"x" * 10_000, str(number)) for number in range(20)])
    keep = {CHANNEL: Keep(max_bytes=20_000, on_full="drop_oldest")}
    assert (await sweep(backend, retention=keep)).dropped == {}
    assert len(await claim(backend)) == 20


async def test_dead_letters_stay_unless_their_retention_is_asked_for(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    for job in await claim(backend):
        assert await bury(backend, job)
    await backend.advance(40 * DAY)
    assert (await sweep(backend)).purged == {}
    stats = await backend.channels.consumer_stats(CHANNEL, CONSUMER)
    assert stats.states[State.DEAD] == 2
    assert (await sweep(backend, dead_letters=30 * DAY)).purged == {f"{CHANNEL}/{CONSUMER}": 2}
    stats = await backend.channels.consumer_stats(CHANNEL, CONSUMER)
    assert stats.states.get(State.DEAD, 0) == 0


async def test_a_dry_run_changes_nothing_and_tells_nobody(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    await claim_one(backend)
    await backend.advance(DAY)
    report = await sweeper(backend).dry_run()
    assert (report.dry_run, report.retried, report.trimmed) == (True, 1, {})
    assert [held.consumer for held in report.held] == [CONSUMER]
    assert await state(backend, "a") is State.LEASED
    assert len(await backend.log.read(CHANNEL, None, 10)) == 2
    assert await told(backend, Swept) == []


async def test_a_dry_run_says_what_would_be_purged_dropped_and_refused(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    for job in await claim(backend):
        assert await bury(backend, job)
    await backend.advance(40 * DAY)
    for channel in ("small", "large"):
        await backend.log.publish(channel, [Event(b"x" * 10_000, str(number)) for number in range(40)])
    keep = {"small": Keep(max_bytes=100_000), "large": Keep(max_bytes=100_000, on_full="drop_oldest")}
    would = await sweeper(backend, retention=keep, dead_letters=30 * DAY).dry_run()
    assert (would.purged, would.full) == ({f"{CHANNEL}/{CONSUMER}": 2}, ["small"])
    assert (await sweeper(backend, retention=keep).dry_run()).purged == {}
    await publish(backend, "one more", channel="small")  # nobody was told to refuse it
    done = await sweep(backend, retention=keep, dead_letters=30 * DAY)
    assert (done.purged, done.full, done.dropped) == (would.purged, would.full, would.dropped)


async def test_two_sweepers_take_turns(backend: Backend) -> None:
    """The second one finds the lock taken; the work is done once."""
    await publish(backend, "a")
    await backend.advance(DAY)
    other = backend.fork()
    await other.open()
    reports = await asyncio.gather(sweeper(backend, "one").run_once(), sweeper(other, "two").run_once())
    await other.close()
    done = [report for report in reports if report is not None]
    assert sum(sum(report.trimmed.values()) for report in done) == 1


async def test_a_sweeper_paused_past_its_lock_changes_nothing_more(backend: Backend) -> None:
    """It wakes up after another one has swept: the store refuses its token, and it ends."""
    await publish(backend, "a")
    await backend.advance(DAY)
    asleep, awake = asyncio.Event(), asyncio.Event()
    napping = paused(backend, asleep, awake)
    running = asyncio.create_task(sweeper(napping, "slow").run_once())
    await asyncio.wait_for(asleep.wait(), 60)
    await backend.advance(RULES.lock_ttl)
    assert (await sweep(backend)).trimmed == {CHANNEL: 1}
    awake.set()
    with pytest.raises(LockLost):
        await running


def paused(backend: Backend, asleep: asyncio.Event, awake: asyncio.Event) -> Any:
    """A backend whose holder falls asleep right before it trims."""

    async def sleep_first(verb: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if verb == "retention.trim":
            asleep.set()
            await awake.wait()
        return await call(*arguments, **options)

    return Hooked(backend, sleep_first)


async def test_a_sweep_that_died_half_way_is_finished_by_the_next(backend: Backend) -> None:
    await publish(backend, "a")
    await subscribe(backend, channel="work")
    await publish(backend, "b", channel="work")
    await claim_one(backend, channel="work")
    await backend.advance(DAY)
    with failpoints.active("sweeper.after_stuck", "raise"), pytest.raises(failpoints.FailpointError):
        await sweeper(backend).run_once()
    report = await sweep(backend)
    assert (report.retried, report.trimmed) == (0, {CHANNEL: 1})
    [job] = await backend.leases.find_jobs("work", DEFAULT_SOURCE, "b")
    assert job.state is State.READY
