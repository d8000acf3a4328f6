"""What the system tells over HTTP: real uvicorn, real stores."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from running import Running, Script, running

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.errors import InvalidInput
from holdfast.server.http import HttpService, listen
from holdfast.server.metrics import serve
from kit import CHANNEL, CONSUMER, until

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
        assert [each["name"] for each in ready["parts"]] == [
            "http",
            "watch",
            "sessions",
            "operations",
            "dlq-summary",
            "lifecycle-0",
            "sweeper-0",
        ]


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
            assert (await system.metrics())["holdfast_store_up"] == {("0",): 1, ("1",): 1}
            await asyncio.to_thread(mortal.kill)
            answer = await system.readiness(503)
            assert "partition 1 does not answer: " in str(answer["reasons"])
            assert (await system.client.get("/healthz")).status_code == 200
            await _half(system)
            await asyncio.to_thread(mortal.start)
            await system.readiness(200)
            assert (await system.metrics())["holdfast_store_up"] == {("0",): 1, ("1",): 1}


async def _half(system: Running) -> None:
    """One store of two tells about itself."""
    found = await system.metrics()
    assert found["holdfast_store_up"] == {("0",): 1, ("1",): 0}
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
        http = system.supervised("http").service
        assert isinstance(http, HttpService)
        assert http.server is not None
        http.server.should_exit = True

        async def restarted() -> bool:
            return system.supervised("http").restarts == 1

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


@pytest.mark.parametrize("wrong", [-1, 65_536])
async def test_a_port_for_metrics_that_cannot_be_is_refused_in_words(bus: holdfast.Bus, wrong: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], wrong):
            with (
                pytest.raises(InvalidInput, match=f"cannot answer metrics on .* port {port}"),
                serve(bus, port),
            ):
                pass


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_does_not_mean_every_address(host: str) -> None:
    with pytest.raises(InvalidInput, match="the host is empty"):
        listen(host, 0)


def test_an_answer_does_not_wait_to_be_acknowledged() -> None:
    """Small packets go out at once, on every connection that the socket accepts."""
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
