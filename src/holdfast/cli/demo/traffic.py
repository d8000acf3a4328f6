"""The traffic of `holdfast up --demo`: a small shop, open for as long as the system is."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bus.client import Bus
from holdfast.cli.demo.business import happening, rate
from holdfast.cli.demo.staff import staff
from holdfast.config.load import FILE
from holdfast.embedded import private
from holdfast.wiring import home

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class TrafficPart:
    """Publishes a few events a second and works on them, in this process."""

    name = "traffic"

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._chance = random.Random()  # noqa: S311 - no secret

    async def run(self) -> None:
        """Until cancelled; then what the handlers have in hand is finished."""
        stop = asyncio.Event()
        working = asyncio.create_task(staff.run(self._bus, stop=stop, grace="5s"))
        publishing = asyncio.create_task(self._publish())
        try:
            await asyncio.wait((working, publishing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            publishing.cancel()
            stop.set()
            await asyncio.gather(publishing, return_exceptions=True)
            await working
        await publishing

    async def _publish(self) -> None:
        opened = time.monotonic()
        while True:
            channel, event = happening(self._chance)
            await self._bus.publish_many(channel, [event])
            await asyncio.sleep(self._chance.expovariate(rate(time.monotonic() - opened)))

    def status(self) -> str:
        """The same all day."""
        return "a small shop is open"

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own: the bus counts."""
        yield from ()


def demo_config(given: Path | None) -> Path | None:
    """The configuration that holds: the one given, else the demo's own, written into `.holdfast/`."""
    if given is not None or os.environ.get(FILE):
        return given
    file = home() / "demo.yaml"
    private.write(file, files("holdfast.cli.demo").joinpath("holdfast.yaml").read_text())
    return file
