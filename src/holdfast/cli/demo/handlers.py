"""The apps that the demo's worker processes run: `holdfast worker holdfast.cli.demo.handlers:shop`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from holdfast.bus.app import App
from holdfast.cli.demo.orders import Kind
from holdfast.cli.demo.terms import BOMB_POLICY, CHANNEL, CONSUMER, POLICY, bombs
from holdfast.model.errors import Terminal, Transient
from holdfast.model.event import Event
from holdfast.model.job import Job

shop, minefield = App(), App()
_channel = os.environ.get(CHANNEL, "demo.orders")


@shop.handler(_channel, CONSUMER, concurrency=10, prefetch=50, **POLICY)
async def bill(event: Event, job: Job) -> None:
    """Take some time, as a payment would, and fail as the order says."""
    await asyncio.sleep(0.015)
    match event.json()["kind"]:
        case Kind.FLAKY if job.attempt == 1:
            raise Transient("the bank did not answer")
        case Kind.HOPELESS:
            raise ValueError("no such account")
        case Kind.POISON:
            raise Terminal("the card is stolen")


@minefield.handler(bombs(_channel), CONSUMER, **BOMB_POLICY)
async def explode(event: Event) -> None:
    """Die as a worker dies that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def _end_with_the_demo() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if CHANNEL in os.environ:
    # The demo holds our stdin. However it ends, its workers do not outlive it.
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
