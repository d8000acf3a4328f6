"""A process that runs every unfinished operation on a store, in small chunks."""

from __future__ import annotations

import asyncio
import sys

import holdfast
from holdfast.deadletters import DeadLetters, Operations, Runner


async def main(url: str, owner: str) -> None:
    async with holdfast.connect(url) as bus:
        await Runner(Operations(DeadLetters(bus)), owner, chunk=3).resume_all()


asyncio.run(main(*sys.argv[1:3]))
