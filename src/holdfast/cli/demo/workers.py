"""The demo's worker processes: apps for `holdfast worker`, and one that is paused and answers late."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

import orjson

from holdfast.bus.app import App
from holdfast.cli.demo.orders import BOMB_POLICY, CHANNEL, CONSUMER, POLICY, Kind, bomb_channel
from holdfast.model.errors import LeaseLost, Terminal, Transient
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast.wiring import connect_sync

shop, minefield = App(), App()
_channel = os.environ.get(CHANNEL, "demo.orders")
_JOBS = 20
"""How many jobs the paused worker claims."""


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


@minefield.handler(bomb_channel(_channel), CONSUMER, **BOMB_POLICY)
async def explode(event: Event) -> None:
    """Die as a worker dies that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def _end_with_the_demo() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def paused_worker() -> None:
    """Write what was claimed, wait for a line, then write how many finalizes were refused.

    The demo pauses the process in between.
    """
    with connect_sync() as bus:
        while not (jobs := bus.poll(os.environ[CHANNEL], CONSUMER, limit=_JOBS)):
            time.sleep(0.05)
        _write_line({job.event.id: job.token for job in jobs})
        sys.stdin.buffer.readline()
        try:
            bus.finalize_many(jobs, success=True)
        except LeaseLost as error:
            _write_line({"refused": len(error.jobs)})
        else:
            _write_line({"refused": 0})


def _write_line(value: dict[str, int]) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    paused_worker()
elif CHANNEL in os.environ:
    # The demo holds our stdin. However it ends, its workers do not outlive it.
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
