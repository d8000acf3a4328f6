"""A process that archives without Spark, until nothing is left or a failpoint ends it.

Specification: url, stream, destination, batch_size, rows; `careless` moves the cursor first, as the seed's
acknowledgement before the write would.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from holdfast.chaos.plain import archive as plain
from holdfast.pipeline.archive.commit import Committer
from holdfast.pipeline.archive.manifest import Manifest
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import open_store
from holdfast.wiring import backend


class Careless(Committer):
    """The guard switched off: the cursor is at the end before anything is written."""

    async def recover(self) -> list[Manifest]:
        self._before = await super().cursors()
        for spot, position in self._before.items():
            last = (await self._backends[spot.partition].extent(spot.channel)).last
            assert last is not None
            await self._backends[spot.partition].move(spot.channel, self._policy.consumer, position, last)
        return []

    async def cursors(self) -> dict[Spot, str | None]:
        return self._before


async def main(spec: dict[str, Any]) -> None:
    if spec.get("careless"):
        plain.Committer = Careless  # type: ignore[misc]
    opened = backend(spec["url"])
    await opened.open()
    policy = ArchivePolicy(spec["stream"], spec["destination"], batch_size=spec["batch_size"])
    await plain.archive([opened], open_store(spec["destination"]), policy, spec["rows"])
    await opened.close()


asyncio.run(main(json.loads(sys.argv[1])))
