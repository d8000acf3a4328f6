"""A system that runs inside a test, and a client that asks it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast.bus.client import Bus
from holdfast.config.config import Config
from holdfast.server.app import Choice, assemble
from holdfast.server.http import HttpService
from holdfast.server.pipeline_port import PipelinePort
from holdfast.server.supervisor import Service, Supervised, Supervisor
from kit import until

Samples = dict[tuple[str, ...], float]
Up = Callable[..., "subprocess.Popen[str]"]
"""Starts a process, with its arguments and its environment."""


class Script:
    """A part that does what a test says: each run takes the next step, and the last one again and again."""

    def __init__(self, *steps: BaseException | str, name: str = "script") -> None:
        self.name, self._steps = name, list(steps)
        self.runs = 0

    async def run(self) -> None:
        step = self._steps[min(self.runs, len(self._steps) - 1)]
        self.runs += 1
        if isinstance(step, BaseException):
            raise step
        if step == "wait":
            await asyncio.Event().wait()

    def status(self) -> str:
        return f"run {self.runs}"

    def metrics(self) -> Iterator[Metric]:
        yield from ()


@dataclass
class Running:
    """What a test can look at."""

    supervisor: Supervisor
    client: httpx.AsyncClient

    def supervised(self, name: str) -> Supervised:
        [found] = [each for each in self.supervisor.services if each.service.name == name]
        return found

    async def readiness(self, status: int) -> dict[str, object]:
        """The answer of /readyz, as soon as it has this status."""

        async def ask() -> httpx.Response | None:
            answer = await self.client.get("/readyz")
            return answer if answer.status_code == status else None

        answer = await until(ask)
        assert answer is not None
        body: dict[str, object] = answer.json()
        return body

    async def metrics(self) -> dict[str, Samples]:
        """Every family's samples by label values, in the order of the labels' names."""
        answer = await self.client.get("/metrics")
        assert answer.status_code == 200
        families = list(text_string_to_metric_families(answer.text))
        assert len({each.name for each in families}) == len(families)
        return {
            sample.name: {
                tuple(value for _, value in sorted(each.labels.items())): each.value
                for each in family.samples
                if each.name == sample.name
            }
            for family in families
            for sample in family.samples
        }


@asynccontextmanager
async def running(
    bus: Bus,
    *,
    sweeper: bool = False,
    parts: Iterable[Service] = (),
    server: Mapping[str, object] = {},
    pipeline: PipelinePort | None = None,
    **config: object,
) -> AsyncIterator[Running]:
    """A system on a free port, which needs no token unless `server` says so; it must stop as it should."""
    effective = Config.model_validate({"server": {"port": 0, "open": True, **server}, **config})
    watcher = Supervisor(first=0.01, longest=0.02)
    supervisor = assemble(bus, effective, Choice(sweeper=sweeper), watcher, pipeline)
    for part in parts:
        supervisor.add(part)
    [http] = [each.service for each in supervisor.services if isinstance(each.service, HttpService)]
    stop = asyncio.Event()
    task = asyncio.create_task(supervisor.run(stop))
    try:
        async with httpx.AsyncClient(base_url=http.url, timeout=30) as client:
            yield Running(supervisor, client)
    finally:
        stop.set()
        unclean = await task
    assert unclean == []
