# ruff: noqa: E402
"""The archiver beside the loops that one would write by hand: `python bench/archive.py --help`.

(a) the seed's loop: XREADGROUP 1000, json, gzip, write, XACK;
(b) the best loop that we know how to write: XRANGE 10,000, orjson, isal, write, cursor;
(c) the archiver's own query into Spark's `noop`: what reading alone costs.

All of them write the same lines, and a file is on the disk before the loop goes on. The loops run in one
process, as one would write them. Spark's start-up and first batch do not count; each figure is events per
second in the steady state.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import orjson
import redis
from isal import igzip
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import holdfast
from holdfast import Event
from holdfast.embedded import Nats, Postgres, Redis
from holdfast.pipeline.archive.archiver import ROWS_PER_TASK, Archiver
from holdfast.pipeline.archive.manifests import read_catalog
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.session import session
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.stores.folder import FolderStore

CHANNEL, STREAM = "gbe.events.audit.change", "gbe:events:audit:change"
SIZE = 200
GOALS = {"archiver": 100_000, "archiver / a": 1.5, "archiver / b": 0.7, "archiver / c": 0.7}
PLANNING = 0.05
PATIENCE = 30.0


def payload(number: int) -> bytes:
    """JSON of 200 bytes, as an audit event might be."""
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    text = b'{"number":%d,"user":"%s","action":"update","before":"%s","after":"' % (
        number,
        digest[:12].encode(),
        digest[12:48].encode(),
    )
    return text + b"x" * (SIZE - len(text) - 2) + b'"}'


def fill(url: str, events: int) -> None:
    with holdfast.connect_sync(url) as bus:
        for start in range(0, events, 5000):
            numbers = range(start, min(start + 5000, events))
            bus.publish_many(CHANNEL, [Event(payload(n), f"{n:032x}") for n in numbers])


# the loops


def document(entry: bytes, fields: dict[bytes, bytes]) -> dict[str, object]:
    """A line's members, as the archive has them."""
    return {
        "message_id": fields[b"id"].decode(),
        "timestamp": datetime.fromtimestamp(int(fields[b"published"]) / 1e6, UTC).isoformat(),
        "channel": CHANNEL,
        "position": entry.decode(),
        "source": fields[b"source"].decode(),
        "type": fields[b"type"].decode(),
        "key": None,
        "headers": {},
        "data": fields[b"data"],
    }


def by_hand(url: str, folder: Path, batch: int) -> float:
    """(a) As the seed has it. JSON in the standard library, gzip at its usual level."""
    client, store = redis.Redis.from_url(url), FolderStore(folder)
    client.xgroup_create(STREAM, "by-hand", id="0")
    count, begun = 0, time.perf_counter()
    while found := client.xreadgroup("by-hand", "one", {STREAM: ">"}, count=batch):
        [(_, entries)] = found
        lines = []
        for entry, fields in entries:
            line = document(entry, fields)
            line["data"] = json.loads(line["data"])
            lines.append(json.dumps(line))
        store.put(f"a/batch-{count:09}.jsonl.gz", gzip.compress("\n".join(lines).encode(), 6))
        client.xack(STREAM, "by-hand", *(entry for entry, _ in entries))
        count += len(entries)
    return count / (time.perf_counter() - begun)


def hand_tuned(url: str, folder: Path, batch: int) -> float:
    """(b) Large reads, a fast encoder that takes the data as it is, a fast compressor, one cursor."""
    client, store = redis.Redis.from_url(url), FolderStore(folder)
    count, after, begun = 0, b"-", time.perf_counter()
    while entries := client.xrange(STREAM, after, count=10_000):
        lines = []
        for entry, fields in entries:
            line = document(entry, fields)
            orjson.loads(line["data"])  # type: ignore[arg-type]
            line["data"] = orjson.Fragment(line["data"])  # type: ignore[arg-type]
            lines.append(orjson.dumps(line))
        for start in range(0, len(lines), batch):
            text = b"\n".join(lines[start : start + batch])
            store.put(f"b/batch-{count + start:09}.jsonl.gz", igzip.compress(text, 1, mtime=0))
        after = b"(" + entries[-1][0]
        client.set("by-hand:cursor", after)
        count += len(entries)
    return count / (time.perf_counter() - begun)


# Spark


class Batch(NamedTuple):
    """A micro-batch: seconds in all, and those of them in which its end was found."""

    seconds: float
    planning: float


class Progress(StreamingQueryListener):
    """What Spark says of the batches of all queries that it runs, once they are over."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        self.batches.clear()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        told = event.progress
        if told.numInputRows:
            took = told.durationMs.get("triggerExecution", 0), told.durationMs.get("latestOffset", 0)
            self.batches.append(Batch(*(milliseconds / 1000 for milliseconds in took)))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    def steady(self, rows: list[int]) -> tuple[float, float]:
        """Events per second over all batches but the first, and the share of it that planning took.

        `rows` are the events of each batch.
        """
        end = time.monotonic() + PATIENCE
        while len(self.batches) < len(rows):  # told by a thread of its own, a little later
            if time.monotonic() > end:
                raise SystemExit(f"Spark told of {len(self.batches)} batches, and {len(rows)} were committed")
            time.sleep(0.05)
        if len(rows) < 2:
            raise SystemExit("too few batches for a steady state: take more events or fewer rows per batch")
        seconds = sum(each.seconds for each in self.batches[1:])
        return sum(rows[1:]) / seconds, sum(each.planning for each in self.batches[1:]) / seconds


def archiver(
    spark: SparkSession, progress: Progress, url: str, folder: Path, given: argparse.Namespace
) -> tuple[float, float]:
    policy = ArchivePolicy(CHANNEL, str(folder / "cold"), batch_size=given.batch, max_rows=given.rows)
    made = Archiver(spark, [url], [policy], folder / "checkpoints")
    begun = time.perf_counter()
    made.run_once()
    print(f"  the whole run: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    archived = [manifest.rows for manifest in read_catalog(open_store(policy.destination)).manifests]
    if sum(archived) != given.events:
        raise SystemExit(f"{sum(archived)} events were archived, and {given.events} published")
    return progress.steady(archived)


def noop(
    spark: SparkSession, progress: Progress, url: str, folder: Path, given: argparse.Namespace
) -> tuple[float, float]:
    """(c) The same source with the same portions."""
    stream = spark.readStream.format("holdfast").options(
        url=url,
        channel=CHANNEL,
        maxRowsPerBatch=given.rows,
        rowsPerPartition=given.batch * max(1, ROWS_PER_TASK // given.batch),
    )
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(folder / "noop"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return progress.steady([each.numInputRows for each in query.recentProgress if each.numInputRows])


@contextmanager
def server(kind: str) -> Iterator[str]:
    if kind == "postgres":
        with Postgres() as started:
            yield started.create_database("bench")
    else:
        with Redis(appendfsync="no") if kind == "redis" else Nats(sync_interval="2m") as started:
            yield started.url


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=["redis", "postgres", "nats"], default="redis")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000, help="events per micro-batch")
    parser.add_argument("--batch", type=int, default=10_000, help="events per object, for everybody")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--check", action="store_true", help="small and quick: does everything run?")
    given = parser.parse_args()
    if given.check:
        given.events, given.rows, given.batch, given.rounds = 20_000, 5_000, 1_000, 1
    with server(given.store) as url:
        print(f"publishing {given.events:,} events of {SIZE} bytes to {given.store} …", file=sys.stderr)
        fill(url, given.events)
        figures, planning = measure(given, url)
    report(figures, planning)
    if given.json:
        given.json.write_text(json.dumps({"figures": figures, "planning": planning}))
    return 0


def measure(given: argparse.Namespace, url: str) -> tuple[dict[str, list[float]], list[float]]:
    figures: dict[str, list[float]] = {}
    planning: list[float] = []

    def run(name: str, work: Callable[[Path], float]) -> None:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            figures.setdefault(name, []).append(work(Path(folder)))
            print(f"{name}: {figures[name][-1]:,.0f} events/s", file=sys.stderr)

    progress = Progress()
    with session("local[*]", settings={"spark.sql.streaming.numRecentProgressUpdates": "1000"}) as spark:
        spark.streams.addListener(progress)

        def archive(folder: Path) -> float:
            forget(url)
            rate, share = archiver(spark, progress, url, folder, given)
            planning.append(share)
            return rate

        for _ in range(given.rounds):
            if given.store == "redis":
                run("a", lambda folder: by_hand(url, folder, 1000))
                run("b", lambda folder: hand_tuned(url, folder, given.batch))
                with redis.Redis.from_url(url) as client:
                    client.xgroup_destroy(STREAM, "by-hand")
            run("c", lambda folder: noop(spark, progress, url, folder, given)[0])
            run("archiver", archive)
    return figures, planning


def forget(url: str) -> None:
    """Let the archiver begin at the beginning again."""
    from holdfast.pipeline.connection import Connection

    with Connection([url]) as connection:
        connection.run(connection.backends[0].cursors.detach(CHANNEL, "archiver"))


def report(figures: dict[str, list[float]], planning: list[float]) -> None:
    middle = {name: median(values) for name, values in figures.items()}
    for name, rate in middle.items():
        low, high = min(figures[name]), max(figures[name])
        print(f"{name:>12}  {rate:>10,.0f} events/s   ({low:,.0f} to {high:,.0f})")
    found = {"archiver": middle["archiver"]}
    found |= {f"archiver / {peer}": middle["archiver"] / middle[peer] for peer in "abc" if peer in middle}
    for name, value in found.items():
        goal = GOALS[name]
        shown = f"{value:,.0f}" if goal > 100 else f"{value:.2f}"
        print(f"{name:>12}  {shown:>10}   goal {goal:,}: {'reached' if value >= goal else 'MISSED'}")
    share = median(planning)
    verdict = "reached" if share < PLANNING else "MISSED"
    print(f"{'planning':>12}  {share:>10.1%}   goal below {PLANNING:.0%} of a batch: {verdict}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'memory':>12}  {peak:>10,.0f}   MiB at most in this process, which is the driver")


if __name__ == "__main__":
    sys.exit(main())
