"""A process that ingests a channel to its end, without Spark.

Specification: url, history, folder, kind (of warehouse), until, ahead (seconds that its clock is past the
leases of those before it), and optionally portion (events of a batch) and pause (seconds until it looks
again).
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.chaos.plain.ingest import PlainIngest

PORTION = 60
_PAUSE = 0.1


async def main(spec: dict[str, Any]) -> None:
    await asyncio.to_thread(ingest, spec)


def ingest(spec: dict[str, Any]) -> None:
    """Pass after pass, the last one after the file is there."""
    driver = PlainIngest(spec["url"], Path(spec["folder"]), timedelta(seconds=spec["ahead"]), spec["kind"])
    over = False
    while not over:
        over = Path(spec["until"]).exists()
        driver.run(spec.get("portion", PORTION), follow=True)
        time.sleep(spec.get("pause", _PAUSE))
    driver.close()
