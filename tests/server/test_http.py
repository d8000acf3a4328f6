"""What the system tells over HTTP: real uvicorn, real stores."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from running import Running, Script, running

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.errors import InvalidInput
from holdfast.server import families
from holdfast.server.families import Family
from holdfast.server.http import HttpPart, listen
from holdfast.server.parts import ACTIONS
from holdfast.server.reading import READINGS
from kit import CHANNEL, CONSUMER, bury, claim, complete, publish, subscribe, until

DOCS = Path(__file__).parents[2] / "docs"
JOBS = ("0", CHANNEL, CONSUMER)


def by_name(samples: dict[tuple[str, ...], float], *values: str) -> float:
    """The one sample with exactly these label values, in any order."""
    [found] = [value for labels, value in samples.items() if sorted(labels) == sorted(values)]
    return found


async def test_a_system_that_is_well_is_alive_and_ready(bus: holdfast.Bus) -> None:
    async with running(bus, sweeper=True) as system:
        alive = await system.client.get("/healthz")
        assert (alive.status_code, alive.json()["status"]) == (200, "alive")
        ready = await system.readiness(200)
        assert (ready["ready"], ready["reasons"]) == (True, [])
        assert isinstance(ready["parts"], list)
        assert [each["name"] for each in ready["parts"]] == ["http", "lifecycle-0", "sweeper-0"]


async def test_metrics_tell_what_was_done(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await subscribe(store)
    await subscribe(store, "audit")
    await store.set_paused(CHANNEL, "audit", True)
    before = await store.now()
    await publish(store, "a", "b", "c", "d", "e")
    after = await store.now()
    await publish(store, "later", at=await store.now() + timedelta(days=1))
    await store.attach(CHANNEL, "archiver")
    first, second, _ = await claim(store, 3)
    assert await complete(store, first)
    assert await bury(store, second)
    async with running(each) as system:
        found = await system.metrics()
    assert {labels[-1]: value for labels, value in found["holdfast_jobs"].items() if CONSUMER in labels} == {
        "scheduled": 1,
        "ready": 2,
        "leased": 1,
        "done": 1,
    }
    assert by_name(found["holdfast_dead_letters"], *JOBS) == 1
    assert by_name(found["holdfast_dead_letters"], "0", CHANNEL, "audit") == 0
    assert by_name(found["holdfast_consumer_paused"], *JOBS) == 0
    assert by_name(found["holdfast_consumer_paused"], "0", CHANNEL, "audit") == 1
    assert found["holdfast_channels"] == {("0",): 1}
    assert 3 <= by_name(found["holdfast_channel_events"], "0", CHANNEL) <= 12
    assert by_name(found["holdfast_channel_bytes"], "0", CHANNEL) > 0
    assert by_name(found["holdfast_cursor_lag_events"], "0", CHANNEL, "archiver") == 6
    for since in (
        by_name(found["holdfast_cursor_oldest_timestamp_seconds"], "0", CHANNEL, "archiver"),
        by_name(found["holdfast_oldest_ready_timestamp_seconds"], *JOBS),
    ):
        assert before.timestamp() <= since <= after.timestamp()
    assert found["holdfast_partition_up"] == {("0",): 1}
    assert set(found["holdfast_scrape_failed"].values()) == {0}
    assert set(found["holdfast_part_up"].items()) == {(("http",), 1), (("lifecycle-0",), 1)}


async def test_metrics_are_read_at_the_moment_of_the_scrape(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with running(bus) as system:
        for count in range(3):
            found = await system.metrics()
            assert by_name(found["holdfast_jobs"], *JOBS, "ready") == count
            await publish(store, f"event-{count}")


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
        assert system.kept("sweeper-0").status() == "3 trimmed"
    done = {labels[0]: value for labels, value in found["holdfast_sweeper_actions_total"].items()}
    assert done == dict.fromkeys((*ACTIONS, "tasks"), 0) | {"trimmed": 3}
    assert by_name(found["holdfast_sweeps_total"], "0", "failed") == 0


async def test_a_part_that_keeps_dying_makes_the_system_not_ready(bus: holdfast.Bus) -> None:
    part = Script(*[RuntimeError("no luck")] * 1000)
    async with running(bus, parts=[part]) as system:
        answer = await system.readiness(503)
        assert answer["reasons"] == ["part script is being restarted: RuntimeError: no luck"]
        part._steps = ["wait"]
        await system.readiness(200)
        found = await system.metrics()
        assert by_name(found["holdfast_part_up"], "script") == 1
        assert by_name(found["holdfast_part_restarts_total"], "script") == part.runs - 1 > 0


async def test_a_store_that_is_gone_is_said_to_be_and_heals(frail: list[str], mortal: Postgres) -> None:
    async with holdfast.connect(frail) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        async with running(bus) as system:
            await system.readiness(200)
            assert (await system.metrics())["holdfast_partition_up"] == {("0",): 1, ("1",): 1}
            await asyncio.to_thread(mortal.kill)
            answer = await system.readiness(503)
            assert "partition 1 does not answer: " in str(answer["reasons"])
            assert (await system.client.get("/healthz")).status_code == 200
            await _half(system)
            await asyncio.to_thread(mortal.start)
            await system.readiness(200)
            assert (await system.metrics())["holdfast_partition_up"] == {("0",): 1, ("1",): 1}


async def _half(system: Running) -> None:
    """One store of two tells about itself."""
    found = await system.metrics()
    assert found["holdfast_partition_up"] == {("0",): 1, ("1",): 0}
    assert {labels[-2] for labels in found["holdfast_jobs"]} == {"0"}
    assert by_name(found["holdfast_jobs"], *JOBS, "ready") == 0


async def test_a_store_that_was_gone_at_the_start_is_opened_when_it_is_there(
    frail: list[str], mortal: Postgres
) -> None:
    await asyncio.to_thread(mortal.kill)
    async with holdfast.connect(frail) as bus, running(bus) as system:
        await system.readiness(503)
        await asyncio.to_thread(mortal.start)
        await system.readiness(200)


async def test_the_server_is_restarted_on_the_same_port(bus: holdfast.Bus) -> None:
    async with running(bus) as system:
        await system.readiness(200)
        http = system.kept("http").part
        assert isinstance(http, HttpPart)
        assert http.server is not None
        http.server.should_exit = True

        async def restarted() -> bool:
            return system.kept("http").restarts == 1

        await until(restarted)
        async with httpx.AsyncClient(base_url=http.url) as client:
            assert (await client.get("/healthz")).status_code == 200


async def test_a_port_that_is_taken_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidInput, match=rf"cannot listen on 127\.0\.0\.1 port {port}: .*choose another"
        ):
            listen("127.0.0.1", port)


def test_every_metric_is_documented() -> None:
    page = (DOCS / "operations.md").read_text()
    known = [each for each in vars(families).values() if isinstance(each, Family)]
    assert len(known) == 16
    for family in known:
        assert any(f"| `{family.name}{end}` | {', '.join(family.labels)} |" in page for end in ("", "_total"))
    for word in (*ACTIONS, *READINGS):
        assert f"`{word}`" in page
