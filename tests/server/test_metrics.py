"""Metrics: what they tell, on every instance, and what happens while a store is away."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pytest
from running import running
from scene import NAMESPACE, eventful, ingest_reporter, with_store

import holdfast
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.server import store_metrics
from holdfast.server.catalog import GROUPS
from holdfast.server.services import ACTIONS
from kit import CHANNEL, CONSUMER, bury, claim, complete, publish, subscribe, until

JOBS = ("0", CHANNEL, CONSUMER)
Samples = dict[tuple[str, ...], float]


def by_name(samples: Samples, *values: str) -> float:
    """The one sample with exactly these label values, in any order."""
    [found] = [value for labels, value in samples.items() if sorted(labels) == sorted(values)]
    return found


async def test_metrics_tell_what_was_done(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await subscribe(store)
    await subscribe(store, "audit")
    await store.channels.set_paused(CHANNEL, "audit", True)
    await publish(store, "a", "b", "c", "d", "e")
    await publish(store, "later", at=await store.now() + timedelta(days=1))
    await store.cursors.attach(CHANNEL, "archiver")
    first, second, _ = await claim(store, 3)
    assert await complete(store, first)
    assert await bury(store, second)
    await store.advance(timedelta(minutes=2))
    async with running(each) as system:
        found = await system.metrics()
    assert {labels[-1]: value for labels, value in found["holdfast_jobs"].items() if CONSUMER in labels} == {
        "scheduled": 1,
        "ready": 2,
        "leased": 1,
    }
    assert by_name(found["dead_job_count"], CHANNEL, CONSUMER) == 1
    assert by_name(found["dead_job_count"], CHANNEL, "audit") == 0
    assert found["holdfast_dead_letters"] == {(CHANNEL, CONSUMER, "0", "terminal"): 1}
    assert by_name(found["holdfast_consumer_paused"], *JOBS) == 0
    assert by_name(found["holdfast_consumer_paused"], "0", CHANNEL, "audit") == 1
    assert found["holdfast_channels"] == {("0",): 1}
    assert 3 <= by_name(found["holdfast_channel_events"], "0", CHANNEL) <= 12
    assert by_name(found["holdfast_channel_bytes"], "0", CHANNEL) > 0
    assert by_name(found["holdfast_cursor_lag_events"], "0", CHANNEL, "archiver") == 6
    assert 120 <= by_name(found["holdfast_cursor_lag_seconds"], "0", CHANNEL, "archiver") < 180
    assert 120 <= by_name(found["holdfast_oldest_ready_age_seconds"], *JOBS) < 180
    assert found["holdfast_store_up"] == {("0",): 1}
    assert found["holdfast_store_epoch"] == {("0",): await store.epoch()}
    assert set(found["holdfast_scrape_failed"].values()) == {0}
    assert {("http",), ("lifecycle-0",)} <= set(found["holdfast_part_up"])
    assert set(found["holdfast_part_up"].values()) == {1}


async def test_metrics_are_read_at_the_moment_of_the_scrape(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with running(bus) as system:
        for count in range(3):
            found = await system.metrics()
            assert by_name(found["holdfast_jobs"], *JOBS, "ready") == count
            await publish(store, f"event-{count}")


async def test_every_instance_tells_the_same_dead_letters(bus: holdfast.Bus, database: str) -> None:
    """Also one that never swept, and so never had the lock. CORRECTIONS 004.6"""
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with (
        holdfast.connect(database) as second,
        running(bus, sweeper=True) as swept,
        running(second) as other,
    ):
        for count in range(1, 4):
            await publish(store, f"e{count}")
            assert await bury(store, (await claim(store, 1))[0])
            for system in (swept, other):
                assert (await system.metrics())["dead_job_count"] == {(CHANNEL, CONSUMER): count}


async def test_dead_letters_of_several_stores_are_added_up(frail: list[str]) -> None:
    async with holdfast.connect(frail) as bus:
        for partition in bus.partitions.all:
            await subscribe(partition.backend)
            await publish(partition.backend, "x")
            assert await bury(partition.backend, (await claim(partition.backend, 1))[0])
        async with running(bus) as system:
            found = await system.metrics()
    assert found["dead_job_count"] == {(CHANNEL, CONSUMER): 2}
    assert found["holdfast_store_up"] == {("0",): 1, ("1",): 1}


async def test_sweeps_are_counted(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await publish(store, "a", "b", "c")
    await store.advance(timedelta(days=8))
    await publish(store, "d")
    async with running(each, sweeper=True, retention={CHANNEL: "7d"}) as system:

        async def swept() -> bool:
            return by_name((await system.metrics())["holdfast_sweeps_total"], "0", "done") == 1

        await until(swept)
        found = await system.metrics()
        assert system.supervised("sweeper-0").status() == "3 trimmed"
    done = {labels[0]: value for labels, value in found["holdfast_sweeper_actions_total"].items()}
    assert {name: done[name] for name in ACTIONS} == dict.fromkeys(ACTIONS, 0) | {"trimmed": 3}
    assert by_name(found["holdfast_sweeps_total"], "0", "failed") == 0
    assert found["holdfast_sweep_seconds_count"] == {("0",): 1}
    assert found["holdfast_sweep_seconds_sum"][("0",)] > 0


async def test_an_instance_that_does_not_sweep_knows_who_holds_a_trim_back(
    each: holdfast.Bus, tmp_path: Path
) -> None:
    async with eventful(each, tmp_path), running(each) as other:
        found = await other.metrics()
    key = (CHANNEL, "archiver", "0")
    assert found["holdfast_trim_held_events"] == {key: 3}
    assert found["holdfast_trim_held_age_seconds"][key] > timedelta(days=8).total_seconds() - 60
    assert found["holdfast_channel_full"] == {(CHANNEL, "0"): 1}
    assert found["holdfast_sweep_age_seconds"][("0",)] < 60


async def test_ticks_are_counted_and_those_that_wait_are_told(bus: holdfast.Bus) -> None:
    """A channel that is full is no pause in which nothing is due."""
    await bus.subscribe(CHANNEL, CONSUMER, max_depth=1)
    await bus.schedule("beat", CHANNEL, every="1h")
    partition = bus.partitions.all[0]
    await partition.backend.advance(timedelta(hours=1))
    assert await partition.ticks.run_once() == 1
    await partition.backend.advance(timedelta(hours=1))
    assert await partition.ticks.run_once() == 1
    async with running(bus) as other:
        found = await other.metrics()
    assert 0 < found["holdfast_schedules_overdue_seconds"][("0",)] < 60
    ticks = {outcome: count for (outcome, _), count in found["holdfast_schedule_ticks_total"].items()}
    assert (ticks["fired"], ticks["skipped"], ticks["failed"] > 0) == (1, 0, True)


async def test_attempts_and_moves_of_this_process_are_counted(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER, lease="30s", backoff=["1s"])
    await bus.publish_many(CHANNEL, [holdfast.Event({}, f"e{n}") for n in range(5)])
    done, failed, back, late, _ = await bus.poll(CHANNEL, CONSUMER, limit=5)
    await bus.finalize(done, success=True)
    await bus.finalize(failed, success=False)
    await bus.release(back)
    await bus.partitions.all[0].backend.advance(timedelta(minutes=1))
    await bus.partitions.all[0].step()
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(late, success=True)
    async with running(bus) as system:
        found = await system.metrics()
    assert found["holdfast_attempts_total"] == {(CHANNEL, CONSUMER): 5}
    outcomes = {labels[-1]: count for labels, count in found["holdfast_settled_total"].items()}
    assert outcomes == {"done": 1, "failed": 1, "given_back": 1, "lost": 1}
    assert found["holdfast_lifecycle_moves_total"][("abandoned", "0")] == 2
    assert found["holdfast_lifecycle_moves_total"][("promoted", "0")] == 1


async def test_requests_are_counted_by_route_and_never_by_path(bus: holdfast.Bus) -> None:
    async with running(bus) as system:
        for number in range(20):
            await system.client.get(f"/nothing/{number}")
        await system.client.request("BREW", "/healthz")
        await system.client.get("/healthz")
        found = await system.metrics()
    counted = found["holdfast_http_requests_total"]
    assert counted[("GET", "none", "404")] == 20
    assert counted[("GET", "/healthz", "200")] == 1
    assert sum(value for labels, value in counted.items() if "other" in labels) == 1
    assert len(counted) == 3
    assert found["holdfast_http_request_seconds_count"][("GET", "none")] == 20


async def test_a_reading_that_hangs_is_given_up_and_the_others_come(
    bus: holdfast.Bus, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await store.cursors.attach(CHANNEL, "archiver")
    monkeypatch.setattr(store_metrics, "PATIENCE", 0.5)

    async def only_cursors() -> dict[str, Samples] | None:
        """A scrape that gave up what hangs, and nothing that was slow for once."""
        found = await system.metrics()
        failed = {labels[-1]: value for labels, value in found["holdfast_scrape_failed"].items()}
        return found if {name for name, value in failed.items() if value} == {"cursors"} else None

    async with running(bus) as system, await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("LOCK TABLE holdfast.cursors IN ACCESS EXCLUSIVE MODE")
        found = await until(only_cursors)
        failed = {labels[-1] for labels in found["holdfast_scrape_failed"]}
        assert failed >= {"cursors", "backlogs", "channels", "consumers"}
        await blocker.rollback()
        monkeypatch.setattr(store_metrics, "PATIENCE", 60.0)
        assert "holdfast_cursor_lag_events" not in found
        assert by_name(found["holdfast_jobs"], *JOBS, "ready") == 0
        assert found["holdfast_store_up"] == {("0",): 1}
        assert (await system.metrics())["holdfast_cursor_lag_events"] == {(CHANNEL, "archiver", "0"): 0}


async def test_what_the_drivers_report_is_told_on_every_instance(each: holdfast.Bus, tmp_path: Path) -> None:
    store = each.partitions.all[0].backend
    archive, ingest = Reporter(NAMESPACE, "archive"), ingest_reporter(tmp_path, max_bytes=77)
    for seconds in (0.3, 3.0):
        archive.batch({CHANNEL: Amount(10, 100), "other": Amount(1, 5)}, seconds)
    for reporter in (archive, ingest):
        await with_store(store.url, reporter.look)
    await store.advance(timedelta(seconds=20))
    async with running(each) as system:
        found = await system.metrics()
    assert found["holdfast_driver_up"] == {("archive",): 1, ("ingest",): 1}
    assert 20 <= found["holdfast_driver_report_age_seconds"][("archive",)] < 60
    assert found["holdfast_pipeline_batches_total"] == {("archive",): 2, ("ingest",): 0}
    assert found["holdfast_pipeline_rows_total"] == {(CHANNEL, "archive"): 20, ("other", "archive"): 2}
    assert found["holdfast_pipeline_bytes_total"] == {(CHANNEL, "archive"): 200, ("other", "archive"): 10}
    buckets = found["holdfast_pipeline_batch_seconds_bucket"]
    assert [buckets["archive", bound] for bound in ("0.1", "0.5", "5.0", "+Inf")] == [0, 1, 2, 2]
    assert found["holdfast_pipeline_batch_seconds_sum"][("archive",)] == pytest.approx(3.3)
    assert set(found["holdfast_pipeline_last_batch_age_seconds"]) == {("archive",)}
    assert found["consumer_wal_writes_total"] == {(): 0}
    assert found["holdfast_wal_limit_bytes"] == {(): 77}
    assert found["holdfast_wal_ready"] == {(): 1}


async def test_the_catalog_is_what_a_scrape_tells(bus: holdfast.Bus, tmp_path: Path) -> None:
    """Nothing that is not documented, and nothing documented that never comes."""
    async with eventful(bus, tmp_path) as system:
        text = (await system.client.get("/metrics")).text
    shown = {tuple(line.split()[2:4]) for line in text.splitlines() if line.startswith("# TYPE")}
    told = {(name.removesuffix("_total"), kind) for name, kind in shown if not name.endswith("_created")}
    known = [family for group in GROUPS for family in group.families]
    assert told == {(family.name, family.kind) for family in known}
    assert len({family.name for family in known}) == len(known)


async def test_ages_do_not_come_from_this_machines_clock(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await store.advance(timedelta(days=3))
    await publish(store, "a")
    async with running(bus) as system:
        assert by_name((await system.metrics())["holdfast_oldest_ready_age_seconds"], *JOBS) < 60


async def test_metrics_answer_in_prometheus_own_format(bus: holdfast.Bus) -> None:
    async with running(bus) as system:
        answer: httpx.Response = await system.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
