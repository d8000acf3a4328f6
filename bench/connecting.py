"""A process that comes to a store: `python -m bench.connecting URL`.

It connects, polls once, and prints as JSON how long each took and how much memory it has then.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import orjson
import psutil
import uvloop

import holdfast

from .contestants.holdfast_ import CHANNEL, CONSUMER

ROOT = Path(__file__).resolve().parent.parent
JOBS = 100
"""That the first poll asks for."""


class ConnectingError(Exception):
    """The process ended without figures."""


async def arrive(url: str) -> dict[str, float]:
    """Seconds and bytes. What the poll leased is given back afterwards."""
    began = time.perf_counter()
    async with holdfast.connect(url) as bus:
        connected = time.perf_counter()
        jobs = await bus.poll(CHANNEL, CONSUMER, limit=JOBS)
        polled = time.perf_counter()
        memory = psutil.Process().memory_info().rss
        for job in jobs:
            await bus.release(job)
    return {
        "connect": connected - began,
        "poll": polled - connected,
        "memory": memory,
        "jobs": len(jobs),
    }


async def arrival(url: str) -> dict[str, float]:
    """What such a process says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.connecting", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    printed, errors = await process.communicate()
    if process.returncode:
        raise ConnectingError("\n".join(errors.decode().splitlines()[-4:]))
    return dict(orjson.loads(printed))


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(arrive(*sys.argv[1:]))))
