"""A process that archives a channel to its end, without Spark: the writer and the commit are the job's own.

Specification: url, history, channel, folder, until, rows (of a commit), batch_size (of an object), and
optionally pause (seconds until it looks again).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from holdfast.chaos.plain.archive import archive
from holdfast.model.errors import Outdated
from holdfast.pipeline.archive.commit import Superseded
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.stores import open_store
from holdfast.wiring import backend

_PAUSE = 0.1


async def main(spec: dict[str, Any]) -> None:
    store, cold = backend(spec["url"]), open_store(spec["folder"])
    policy = ArchivePolicy(spec["channel"], spec["folder"], batch_size=spec["batch_size"])
    await store.open()
    while True:
        over = Path(spec["until"]).exists()
        try:
            await archive([store], cold, policy, spec["rows"])
        except Superseded as error:  # it was stopped, and another one has gone on
            raise Outdated(str(error)) from error
        if over:
            break
        await asyncio.sleep(spec.get("pause", _PAUSE))
    await store.close()
