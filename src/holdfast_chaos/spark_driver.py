"""A real driver of the ingest on Spark, in a process of its own: it does what `holdfast ingest --once` does.

    python -m holdfast_chaos.spark_driver '{"url": …, "folder": …, "kind": "duckdb", "ahead": 121}'

Only its clock is another: it is past the leases of drivers that were killed before it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.pipeline.ingest.driver import Ingest
from holdfast.pipeline.session import session
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.warehouse import loads
from holdfast_chaos.without_spark import plan_of

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "20",  # where executors are killed one after the other
}


def main(url: str, folder: Path, kind: str, ahead: timedelta, master: str) -> int:
    """0 when everything that is there is in the warehouse. Into Delta it is loaded by tasks, however small it
    is."""
    logging.basicConfig(level=logging.INFO)
    loads.TASK_BYTES = 1
    with session(master, name="ingest", settings=SETTINGS) as spark:
        job = Ingest(spark, [url], plan_of(folder, kind), folder / "checkpoints")
        job.wal = Wal(job.wal.store, job.wal.settings, lambda: datetime.now(UTC) + ahead)
        return 1 if job.run_once().left else 0


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    ahead = timedelta(seconds=spec["ahead"])
    sys.exit(main(spec["url"], Path(spec["folder"]), spec["kind"], ahead, spec["master"]))
