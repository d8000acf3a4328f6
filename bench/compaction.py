"""Whether compaction holds commits back: how long small loads into Delta take, alone and beside merges.

    python -m bench.compaction
    python -m bench.compaction --files 200 --rows 20000
    python -m bench.compaction --check               # small and quick: does it run?

Both run in one process, as in a driver. The files of the table are merged while loads go on, until twice as
many are merged as there were. Held back is what the slowest load beside it took above the median alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from statistics import median

import pyarrow as pa

from bench.feed import data
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.ingest.validation import ValidationRules, to_segment_rows
from holdfast.pipeline.warehouse import Load, Tables, Warehouse, delta_upkeep, open_warehouse
from holdfast.pipeline.warehouse.contract import upkeep_of

GOAL = 1.0
_CHANNEL, _SMALL, _ALONE = "orders", 500, 20


def main() -> int:
    """0, whatever the goal says."""
    parser = argparse.ArgumentParser(description="Whether compaction holds commits back.")
    parser.add_argument("--files", type=int, default=60, help="to merge")
    parser.add_argument("--rows", type=int, default=10_000, help="of each of them")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        options.files, options.rows = 10, 100
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        url = f"delta://{folder}/tables"
        warehouse, loads = open_warehouse(url, Tables()), Loads()
        for _ in range(options.files):
            loads.put(warehouse, options.rows)
        alone = [loads.put(warehouse, _SMALL) for _ in range(_ALONE)]
        beside, merged = _beside(url, warehouse, loads, 2 * options.files)
    figures = {
        "files": options.files,
        "rows": options.rows,
        "merged_files": merged,
        "loads_beside": len(beside),
        "alone_seconds": {"median": round(median(alone), 3), "max": round(max(alone), 3)},
        "beside_seconds": {"median": round(median(beside), 3), "max": round(max(beside), 3)},
        "held_back_seconds": round(max(beside) - median(alone), 3),
        "goal_seconds": GOAL,
    }
    print(json.dumps(figures, indent=2))
    return 0


class Loads:
    """Batches of events that nobody had before."""

    def __init__(self) -> None:
        self._number = 0

    def put(self, warehouse: Warehouse, rows: int) -> float:
        """Load so many events; returns how long that took."""
        first = self._number
        self._number += rows
        numbers = range(first, first + rows)
        plain = pa.table(
            {
                "channel": pa.repeat(_CHANNEL, rows),
                "position": [f"0001-{number:016x}" for number in numbers],
                "id": [f"e-{number}" for number in numbers],
                "source": pa.repeat("default", rows),
                "type": pa.repeat("event", rows),
                "key": pa.nulls(rows, pa.string()),
                "time": pa.repeat(pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")), rows),
                "headers": pa.array([[]] * rows, pa.map_(pa.string(), pa.string())),
                "data": [data(number) for number in numbers],
                "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
            }
        )
        staged = to_segment_rows(plain.cast(SCHEMA), ValidationRules())
        began = time.monotonic()
        warehouse.load([Load(f"batch-{first}", (_CHANNEL,), staged)])
        return time.monotonic() - began


def _beside(url: str, warehouse: Warehouse, loads: Loads, most: int) -> tuple[list[float], int]:
    """How long loads take until so many files are merged, and how many were."""
    done, merged = threading.Event(), 0

    def merge() -> None:
        nonlocal merged
        tables = upkeep_of(url, 64 << 20, timedelta(hours=1))
        for table in tables:
            while merged < most and any(step := table.step(datetime.now(UTC))):
                merged += step.merged
        done.set()

    delta_upkeep.FEW = 4  # so that what is loaded meanwhile is merged, too
    thread, taken = threading.Thread(target=merge), list[float]()
    thread.start()
    while not done.is_set() or not taken:
        taken.append(loads.put(warehouse, _SMALL))
    thread.join()
    return taken, merged


if __name__ == "__main__":
    sys.exit(main())
