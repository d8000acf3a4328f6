"""The pipeline: processes that archive and ingest a channel to its end, without Spark."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.model.errors import Outdated
from holdfast.pipeline.archive.commit import Superseded
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.stores import open_store
from holdfast.wiring import backend
from holdfast_chaos.without_spark import SparklessIngest, archive

PORTION = 60
_PAUSE = 0.1


async def archiver(spec: dict[str, Any]) -> None:
    """Archive a channel to its end, without Spark: the writer and the commit are the job's own.

    Specification: url, history, channel, folder, until, rows (of a commit), batch_size (of an object), and
    optionally pause (seconds until it looks again).
    """
    store, archive_store = backend(spec["url"]), open_store(spec["folder"])
    policy = ArchivePolicy(spec["channel"], spec["folder"], batch_size=spec["batch_size"])
    await store.open()
    while True:
        over = Path(spec["until"]).exists()
        try:
            await archive([store], archive_store, policy, spec["rows"])
        except Superseded as error:  # it was stopped, and another one has gone on
            raise Outdated(str(error)) from error
        if over:
            break
        await asyncio.sleep(spec.get("pause", _PAUSE))
    await store.close()


async def ingester(spec: dict[str, Any]) -> None:
    """Ingest a channel to its end, without Spark.

    Specification: url, history, folder, kind (of warehouse), until, ahead (seconds that its clock is past the
    leases of those before it), and optionally portion (events of a batch) and pause (seconds until it looks
    again).
    """
    await asyncio.to_thread(ingest, spec)


def ingest(spec: dict[str, Any]) -> None:
    """Pass after pass, the last one after the file is there."""
    driver = SparklessIngest(
        spec["url"], Path(spec["folder"]), timedelta(seconds=spec["ahead"]), spec["kind"]
    )
    over = False
    while not over:
        over = Path(spec["until"]).exists()
        driver.run(spec.get("portion", PORTION), follow=True)
        time.sleep(spec.get("pause", _PAUSE))
    driver.close()
