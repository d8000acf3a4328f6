"""A process that keeps time: it steps the lifecycle until nothing is due any more.

Specification: url, history.
"""

from __future__ import annotations

from typing import Any

import holdfast


async def main(spec: dict[str, Any]) -> None:
    async with holdfast.connect(spec["url"]) as bus:
        [partition] = bus.partitions.all
        while (await partition.step()).total:
            pass
