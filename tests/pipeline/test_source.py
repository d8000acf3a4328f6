"""The data source on every kind of store: what goes in comes out, in batch and as a stream."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from batches import Batches, wait_for
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

import holdfast
from holdfast import Event
from holdfast.pipeline.source import SCHEMA
from holdfast.wiring import backend as connect_backend

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def publish(url: str, channel: str, *ids: str, data: object = None) -> None:
    with holdfast.connect_sync(url) as hf:
        hf.publish_many(channel, [Event({"id": each} if data is None else data, each) for each in ids])


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number:03}" for number in range(count)]


def read(spark: SparkSession, url: str, channel: str, **options: object) -> DataFrame:
    return spark.read.format("holdfast").options(url=url, channel=channel, **options).load()


def ids(rows: list[Row], channel: str | None = None) -> list[str]:
    return [row.id for row in rows if channel is None or row.channel == channel]


def test_every_column_arrives_as_it_was_published(spark: SparkSession, store: str) -> None:
    events = [
        Event({"n": 1}, "plain"),
        Event(b"\x00\xff\xfe", "binary", key="k", time=NOON + timedelta(microseconds=1)),
        Event(b"", "empty", source="shop", type="order.paid", headers={"trace": "ü", "empty": ""}),
    ]
    with holdfast.connect_sync(store) as hf:
        receipts = hf.publish_many("orders", events)
    plain, binary, empty = read(spark, store, "orders").collect()
    assert [row.position for row in (plain, binary, empty)] == [receipt.position for receipt in receipts]
    assert plain.asDict() | {"position": "", "time": ""} == {
        "channel": "orders",
        "position": "",
        "id": "plain",
        "source": "default",
        "type": "event",
        "key": None,
        "time": "",
        "headers": {},
        "data": b'{"n":1}',
        "partition": 0,
    }
    assert abs(plain.time.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=5)
    assert (binary.data, binary.key) == (b"\x00\xff\xfe", "k")
    assert binary.time.replace(tzinfo=UTC) == NOON + timedelta(microseconds=1)
    assert (empty.data, empty.source, empty.type) == (b"", "shop", "order.paid")
    assert empty.headers == {"trace": "ü", "empty": ""}


@pytest.mark.dealt
def test_a_batch_read_is_cut_into_tasks_and_keeps_its_order(spark: SparkSession, store: str) -> None:
    names = numbered("a", 100)
    for start in range(0, 100, 20):
        publish(store, "shop.a", *names[start : start + 20])
    publish(store, "shop.b", "b0")
    frame = read(spark, store, "shop.*", minPartitions=4)
    rows = frame.selectExpr("id", "position", "spark_partition_id() AS task").collect()
    assert len({row.task for row in rows}) >= 3
    assert ids(rows) == [*names, "b0"]
    until = read(spark, store, "shop.a", startingPosition=rows[9].position, endingPosition=rows[19].position)
    assert ids(until.collect()) == names[10:20]


@pytest.mark.dealt
def test_a_stream_reads_all_in_portions_and_the_same_after_a_crash(
    spark: SparkSession, store: str, tmp_path: Path
) -> None:
    publish(store, "shop.a", *numbered("a", 25))
    publish(store, "shop.b", *numbered("b", 5))
    publish(store, "other", "never")
    stream = Batches(spark, tmp_path, url=store, channel="shop.*", maxRowsPerBatch=10)

    first = stream.run()
    assert len(first) >= 3
    assert all(len(rows) <= 10 for rows in first)
    assert {row.channel for row in first[0]} == {"shop.a", "shop.b"}, "one channel kept the other waiting"
    everything = [row for rows in first for row in rows]
    assert ids(everything, "shop.a") == numbered("a", 25)
    assert ids(everything, "shop.b") == numbered("b", 5)

    last = stream.forget_last_commit()
    before = stream.seen[last]
    publish(store, "shop.a", "late")
    publish(store, "shop.c", "new")
    second = stream.run()
    assert stream.seen[last] == before == second[0], "the replayed batch differs"
    assert sorted(row.id for rows in second[1:] for row in rows) == ["late", "new"]


@pytest.mark.dealt
def test_a_new_channel_appears_in_a_running_query(spark: SparkSession, store: str, tmp_path: Path) -> None:
    publish(store, "shop.a", "a0")
    stream = Batches(spark, tmp_path, url=store, channel="shop.>", startingPosition="latest")
    query = stream.start()
    try:
        wait_for(query, lambda: query.lastProgress or query.status["message"] == "Waiting for data to arrive")
        publish(store, "shop.a", "a1")
        wait_for(query, lambda: stream.ids == ["a1"])
        publish(store, "shop.new.one", "n0", "n1")
        wait_for(query, lambda: stream.ids == ["a1", "n0", "n1"])
    finally:
        query.stop()


def test_a_batch_keeps_to_its_bytes(spark: SparkSession, empty_redis: str, tmp_path: Path) -> None:
    publish(empty_redis, "orders", *numbered("o", 12), data=b"x" * 50_000)
    stream = Batches(spark, tmp_path, url=empty_redis, channel="orders", maxBytesPerBatch=210_000)
    batches = stream.run()
    assert [len(rows) for rows in batches] == [4, 4, 4]
    assert stream.ids == numbered("o", 12)


@pytest.mark.dealt
async def test_a_consumer_gives_the_start_and_is_not_moved(
    spark: SparkSession, store: str, tmp_path: Path
) -> None:
    backend = connect_backend(store)
    await backend.open()
    try:
        publish(store, "orders", "o0", "o1", "o2")
        first, *_ = await backend.log.read("orders", None, 1)
        await backend.cursors.attach("orders", "lake")
        assert await backend.cursors.move("orders", "lake", None, first.position)
        options = {"url": store, "channel": "orders,missing", "failOnMissingChannel": False}
        stream = Batches(spark, tmp_path, consumer="lake", **options)
        [rows] = stream.run()
        assert ids(rows) == ["o1", "o2"]
        assert {(c.channel, c.position) for c in await backend.cursors.all("orders")} == {
            ("orders", first.position)
        }
    finally:
        await backend.close()


def test_several_stores_make_one_table(spark: SparkSession, database: str, empty_redis: str) -> None:
    publish(database, "orders", "p0")
    publish(empty_redis, "orders", "r0", "r1")
    rows = read(spark, f"{database},{empty_redis}", "orders").collect()
    assert [(row.partition, row.id) for row in rows] == [(0, "p0"), (1, "r0"), (1, "r1")]


@pytest.mark.dealt
async def test_a_time_starts_and_ends_a_read(spark: SparkSession, store: str) -> None:
    backend = connect_backend(store)
    await backend.open()
    try:
        times = []
        for name in ("o0", "o1", "o2"):
            await backend.advance(timedelta(hours=1))
            times.append(await backend.now())
            publish(store, "orders", name)
    finally:
        await backend.close()
    start, end = times[1].isoformat(), times[2].isoformat()
    assert ids(read(spark, store, "orders", startingPosition=start).collect()) == ["o1", "o2"]
    both = read(spark, store, "orders", startingPosition=start, endingPosition=end)
    assert ids(both.collect()) == ["o1"]


@pytest.mark.dealt
async def test_a_time_is_that_of_publishing_whatever_the_event_says(spark: SparkSession, store: str) -> None:
    """An event that is published late is beyond an end at its hour, and one of next year within."""
    backend = connect_backend(store)
    await backend.open()
    try:
        now = await backend.now()
        await backend.log.publish("orders", [Event({}, "of next year", time=now + timedelta(days=365))])
        await backend.advance(timedelta(hours=1))
        await backend.log.publish("orders", [Event({}, "late", time=now)])
    finally:
        await backend.close()
    hour = (now + timedelta(minutes=30)).isoformat()
    assert ids(read(spark, store, "orders", endingPosition=hour).collect()) == ["of next year"]
    assert ids(read(spark, store, "orders", startingPosition=hour).collect()) == ["late"]


@pytest.mark.dealt
def test_nothing_to_read_is_an_empty_table(spark: SparkSession, store: str) -> None:
    with holdfast.connect_sync(store) as hf:
        hf.create_channel("orders")
    assert read(spark, store, "orders").collect() == []
    assert read(spark, store, "no.such.*").collect() == []


@pytest.mark.dealt
def test_a_channel_that_is_not_there_is_said_at_load(spark: SparkSession, store: str) -> None:
    publish(store, "orders", "o0")
    message = r"there is no channel 'oders'; correct the name, create the channel, or set failOnMiss"
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match=message):
            reader.format("holdfast").options(url=store, channel="orders,oders").load()


def test_a_channel_that_is_not_there_is_said_with_a_schema_of_ones_own_too(
    spark: SparkSession, empty_redis: str, tmp_path: Path
) -> None:
    """Then Spark does not ask the source before the query runs."""
    options = {"url": empty_redis, "channel": "oders"}
    frame = spark.read.format("holdfast").schema(SCHEMA).options(**options).load()
    with pytest.raises(Exception, match="there is no channel 'oders'"):
        frame.collect()
    stream = spark.readStream.format("holdfast").schema(SCHEMA).options(**options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="there is no channel 'oders'"):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.dealt
def test_a_stream_waits_for_its_channel_when_asked_to(
    spark: SparkSession, store: str, tmp_path: Path
) -> None:
    options = {"url": store, "channel": "orders", "failOnMissingChannel": False, "startingPosition": "latest"}
    assert read(spark, store, "orders", failOnMissingChannel=False).collect() == []
    stream = Batches(spark, tmp_path, **options)
    query = stream.start()
    try:
        wait_for(query, lambda: query.lastProgress or query.status["message"] == "Waiting for data to arrive")
        publish(store, "orders", "o0", "o1")
        wait_for(query, lambda: stream.ids == ["o0", "o1"])
    finally:
        query.stop()


def test_a_channel_on_one_of_several_stores_is_there(
    spark: SparkSession, database: str, empty_redis: str
) -> None:
    publish(empty_redis, "orders", "r0")
    with holdfast.connect_sync(database):
        pass
    assert ids(read(spark, f"{database},{empty_redis}", "orders").collect()) == ["r0"]


def test_a_wrong_option_is_said_at_load(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"unknown option 'chanel'; the options are url, channel"):
        spark.readStream.format("holdfast").option("chanel", "orders").load()
    with pytest.raises(AnalysisException, match=r"option channel is missing"):
        spark.read.format("holdfast").load()


def test_a_stream_that_is_to_end_somewhere_fails_when_it_starts(
    spark: SparkSession, empty_redis: str, tmp_path: Path
) -> None:
    """Spark does not tell the source at `load` whether a stream is wanted."""
    publish(empty_redis, "orders", "o0")
    stream = Batches(spark, tmp_path, url=empty_redis, channel="orders")
    stream.run()
    for folder in (tmp_path, tmp_path / "new"):  # with and without a checkpoint
        stream = Batches(spark, folder, url=empty_redis, channel="orders", endingPosition="latest")
        with pytest.raises(Exception, match="endingPosition is for batch reads; use the trigger") as failed:
            stream.run()
        assert "UnboundLocalError" not in str(failed.value)
