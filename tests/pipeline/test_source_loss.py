"""What was trimmed before it was read: said clearly, and passed over only where that was asked for."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from batches import Batches
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

import holdfast
from holdfast import failpoints
from holdfast.model.errors import DataLost
from holdfast.pipeline import source
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.options import Options
from holdfast.wiring import backend as connect_backend

MINUTE = timedelta(minutes=1)
LOST = r"DataLost: channel 'orders' of partition 0 was read up to .* and has been trimmed up to"


async def publish(url: str, *ids: str) -> list[str]:
    """Each by itself; answers the positions."""
    async with holdfast.connect(url) as hf:
        return [(await hf.publish("orders", {}, id=each)).position for each in ids]


async def trim(url: str, events: int) -> None:
    """Remove the oldest events of the channel."""
    backend = connect_backend(url)
    await backend.open()
    lock = await backend.locks.acquire("sweeper", "tester", MINUTE)
    assert lock is not None
    done = await backend.retention.trim("orders", await backend.now() + MINUTE, events, lock)
    assert done.removed == events
    await backend.locks.release(lock)
    await backend.close()


async def test_a_stream_that_was_overtaken_fails_or_goes_on(
    spark: SparkSession, empty_redis: str, tmp_path: Path
) -> None:
    await publish(empty_redis, "o0", "o1")
    stream = Batches(spark, tmp_path, url=empty_redis, channel="orders")
    stream.run()
    await publish(empty_redis, "o2", "o3", "o4")
    await trim(empty_redis, 4)
    with pytest.raises(PySparkException, match=LOST):
        stream.run()
    [rows] = stream.run(failOnDataLoss="false")
    assert [row.id for row in rows] == ["o4"]


@pytest.mark.dealt
async def test_a_batch_read_that_was_overtaken_fails_or_goes_on(spark: SparkSession, store: str) -> None:
    first, *_ = await publish(store, "o0", "o1", "o2")
    await trim(store, 2)
    wanted = spark.read.format("holdfast").options(url=store, channel="orders", startingPosition=first)
    with pytest.raises(PySparkException, match=LOST):
        wanted.load().collect()
    assert [row.id for row in wanted.option("failOnDataLoss", "false").load().collect()] == ["o2"]


@pytest.mark.dealt
async def test_a_new_query_starts_with_what_is_there(spark: SparkSession, store: str) -> None:
    await publish(store, "o0", "o1")
    await trim(store, 1)
    whole = spark.read.format("holdfast").options(url=store, channel="orders")
    assert [row.id for row in whole.load().collect()] == ["o1"]
    assert [row.id for row in whole.option("consumer", "lake").load().collect()] == ["o1"]


async def test_a_task_that_was_overtaken_fails_or_goes_on(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(store, "o0", "o1", "o2")
    given = {"url": store, "channel": "orders"}
    options = Options.of(given)
    [task] = source.BatchReader(options).partitions()
    await trim(store, 2)
    with pytest.raises(DataLost, match="orders"):
        list(source.read(options, task))
    with caplog.at_level(logging.WARNING):
        [batch] = source.read(Options.of(given | {"failOnDataLoss": "false"}), task)
    assert batch.column("id").to_pylist() == ["o2"]
    assert "failOnDataLoss" in caplog.text
    await trim(store, 1)
    assert list(source.read(Options.of(given | {"failOnDataLoss": "false"}), task)) == []


def large(url: str, events: int) -> tuple[Options, InputPartition]:
    """A task over so many events of half a megabyte."""
    with holdfast.connect_sync(url) as hf:
        for number in range(events):
            hf.publish("orders", b"x" * 500_000, id=f"o{number}")
    options = Options.of({"url": url, "channel": "orders"})
    [task] = source.BatchReader(options).partitions()
    return options, task


def test_a_task_holds_little_in_memory_and_may_be_given_up(store: str) -> None:
    batches = source.read(*large(store, 40))
    assert next(batches).num_rows < 40
    batches.close()


def test_what_is_trimmed_under_a_task_is_noticed(empty_redis: str) -> None:
    options, task = large(empty_redis, 100)
    hits = count(1)

    def overtake() -> None:
        if next(hits) == 1:
            with Connection((empty_redis,)) as connection:
                connection.run(trim(empty_redis, 99))

    with failpoints.active("source.mid_read", overtake), pytest.raises(DataLost, match="orders"):
        list(source.read(options, task))
