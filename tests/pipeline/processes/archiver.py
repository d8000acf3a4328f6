"""A process that archives without Spark, until nothing is left or a failpoint ends it.

Specification: url, stream, destination, batch_size, rows.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.stores import open_store
from holdfast.wiring import backend
from holdfast_chaos.without_spark import archive


async def main(spec: dict[str, Any]) -> None:
    opened = backend(spec["url"])
    await opened.open()
    policy = ArchivePolicy(spec["stream"], spec["destination"], batch_size=spec["batch_size"])
    await archive([opened], open_store(spec["destination"]), policy, spec["rows"])
    await opened.close()


asyncio.run(main(json.loads(sys.argv[1])))
