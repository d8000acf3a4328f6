"""What an archive is good for: verified, replayed, compacted."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import Event
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound, ObjectConflict
from holdfast.pipeline import compact as compacting
from holdfast.pipeline import replay as replaying
from holdfast.pipeline.archive.manifests import read_catalog
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.verify import verify
from holdfast.pipeline.replay import Replayed
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.wiring import backend
from holdfast_chaos.checks.pipeline import check_archive
from holdfast_chaos.without_spark import archive

pytestmark = pytest.mark.timeout(600)  # the first of them waits for Spark to start

CHANNEL = "gbe.events.audit.change"
NOW = datetime.now(UTC)
DATA = [b'{"user": "ann", "n": 1.50}', b'{\n "user": "bob"\n}', b"\xff no JSON", b'"text"', b"null"]


@pytest.fixture
def cold(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "cold"))


@pytest.fixture
async def archived(database: str, tmp_path: Path, cold: ObjectStore) -> str:
    """Sixty events of all sorts, in objects of ten and three commits; answers the URL of the archive."""
    events = [
        Event(DATA[n % 5], f"e-{n}", "web", f"kind-{n % 2}", f"key-{n % 7}", NOW, {"n": str(n)})
        for n in range(60)
    ]
    store = backend(database)
    await store.open()
    await store.log.publish(CHANNEL, events)
    destination = str(tmp_path / "cold")
    await archive([store], cold, ArchivePolicy(CHANNEL, destination, batch_size=10), 20)
    await store.close()
    return destination


# verify


def test_a_sound_archive_is_said_to_be_sound(spark: SparkSession, archived: str) -> None:
    report = verify(spark, archived)
    assert (report.sound, report.problems) == (True, [])
    assert (report.manifests, report.objects, report.rows) == (3, 6, 60)


def test_everything_that_is_wrong_is_named(spark: SparkSession, archived: str, cold: ObjectStore) -> None:
    catalog = read_catalog(cold)
    gone, flipped, shorter, *_ = [each.object for each in catalog.objects]
    cold.delete(gone)
    data = cold.get(flipped)
    cold.delete(flipped)
    cold.put(flipped, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    orphan, beyond = shorter.replace("_0001-", "_0000-"), shorter.replace("_0001-", "_00ff-")
    cold.put(orphan, b"x")
    cold.put(beyond, b"x")
    cold.delete(catalog.manifests[1].name)
    report = verify(spark, archived)
    found = {(problem.kind, problem.object) for problem in report.problems}
    assert ("missing", gone) in found
    assert ("damaged", flipped) in found
    assert ("gap", catalog.manifests[2].name) in found
    assert ("orphaned", orphan) in found
    assert ("uncommitted", beyond) in found
    unlisted = {("unlisted", each.object) for each in catalog.manifests[1].objects}
    assert found == {
        ("missing", gone),
        ("damaged", flipped),
        ("gap", catalog.manifests[2].name),
        ("orphaned", orphan),
        ("uncommitted", beyond),
        *unlisted,
    }
    assert not report.sound


@pytest.mark.slow
def test_the_command_names_the_damage_and_ends_with_1(archived: str, cold: ObjectStore) -> None:
    manifest = read_catalog(cold).manifests[0].name
    text = cold.get(manifest)
    cold.delete(manifest)
    cold.put(manifest, text[:-20])
    command = [sys.executable, "-m", "holdfast.cli", "archive", "verify", "--destination", archived, "--json"]
    done = subprocess.run([*command, "--master", "local[1]"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    [answer] = json.loads(done.stdout)
    assert not answer["sound"]
    assert ["damaged", manifest] in [
        [problem["kind"], problem["object"]] for problem in answer["report"]["problems"]
    ]


# replay


async def replay(
    spark: SparkSession, url: str, source: str, where: str, to: str, again: bool = False
) -> Replayed:
    events = replaying.select(spark, source, where)
    result = replaying.count(events)
    if not again:
        replaying.refuse_forgotten(events, to, timedelta(days=14))
    async with holdfast.connect(url) as bus:
        return await replaying.publish(bus, events, to, result)


async def log(url: str, channel: str) -> list[Event]:
    async with holdfast.connect(url) as bus:
        return [entry.event for entry in await bus.read(channel)]


async def test_events_come_back_as_they_were_and_in_order(
    spark: SparkSession, database: str, archived: str
) -> None:
    result = await replay(spark, database, archived, "type = 'kind-1'", "again")
    assert (result.matched, result.published, result.duplicates) == (30, 30, 0)
    before = [event for event in await log(database, CHANNEL) if event.type == "kind-1"]
    assert await log(database, "again") == before
    result = await replay(spark, database, archived, "type = 'kind-1'", "again")
    assert (result.published, result.duplicates) == (0, 30), "to repeat it changes nothing"


async def test_into_its_own_channel_a_replay_changes_nothing(
    spark: SparkSession, database: str, archived: str
) -> None:
    before = await log(database, CHANNEL)
    result = await replay(spark, database, archived, "true", CHANNEL)
    assert (result.matched, result.published, result.duplicates) == (60, 0, 60)
    assert await log(database, CHANNEL) == before


@pytest.mark.slow
async def test_what_the_store_may_have_forgotten_needs_again(
    spark: SparkSession, database: str, cold: ObjectStore, archived: str
) -> None:
    events = replaying.select(spark, archived, "message_id = 'e-7'")
    with pytest.raises(InvalidInput, match="--again"):
        replaying.refuse_forgotten(events, CHANNEL, timedelta(0))
    replaying.refuse_forgotten(events, "another", timedelta(0))
    result = await replay(spark, database, archived, "message_id = 'e-7'", CHANNEL, again=True)
    assert (result.published, result.duplicates) == (0, 1), "this store still knows it"


async def test_conditions_reach_into_the_data(spark: SparkSession, archived: str) -> None:
    chosen = replaying.select(
        spark, archived, "get_json_object(data, '$.user') = 'bob' AND headers['n'] < '3'"
    )
    assert {row.message_id for row in chosen.collect()} == {"e-1", "e-11", "e-16", "e-21", "e-26"}


def test_a_condition_that_makes_no_sense_is_said_to_be_wrong(spark: SparkSession, archived: str) -> None:
    with pytest.raises(InvalidInput, match="message_id"):
        replaying.select(spark, archived, "message = 'e-7'")
    with pytest.raises(InvalidInput, match="--where"):
        replaying.select(spark, archived, "this is no SQL")


async def test_events_of_a_store_that_is_not_listed_are_refused(
    spark: SparkSession, archived: str, database: str, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    stores = [backend(new_database()) for _ in range(2)]
    destination = str(tmp_path / "two")
    for number, store in enumerate(stores):
        await store.open()
        await store.log.publish(CHANNEL, [Event({}, f"p-{number}")])
    await archive(stores, open_store(destination), ArchivePolicy(CHANNEL, destination), 10)
    urls = [store.url for store in stores]
    for store in stores:
        await store.close()
    events = replaying.select(spark, destination, "true")
    with pytest.raises(InvalidInput, match="partition 1"):
        async with holdfast.connect(urls[0]) as bus:
            await replaying.publish(bus, events, CHANNEL, Replayed(2))
    async with holdfast.connect(urls) as bus:
        assert (await replaying.publish(bus, events, CHANNEL, Replayed(2))).duplicates == 2


# compact


def test_a_day_becomes_parquet_and_equal(spark: SparkSession, archived: str, cold: ObjectStore) -> None:
    [done] = compacting.compact(spark, archived, NOW.date())
    assert (done.rows, done.objects) == (60, 6)
    assert done.name.startswith(f"compact/audit/{NOW:%Y/%m/%d}/{CHANNEL}-p000-")
    table = pq.read_table(io.BytesIO(cold.get(done.name)))
    assert table["message_id"].to_pylist() == [f"e-{n}" for n in range(60)]
    query = f"SELECT count(*), min(key) FROM '{archived}/compact/**/*.parquet' WHERE data ->> 'user' = 'bob'"
    assert duckdb.sql(query).fetchall() == [(12, "key-0")]
    assert compacting.compact(spark, archived, NOW.date()) == [done], "to repeat it changes nothing"
    assert check_archive(cold).wrong == []
    assert verify(spark, archived).sound


def test_a_day_without_events_is_not_found(spark: SparkSession, archived: str) -> None:
    with pytest.raises(NotFound, match="1999-01-01"):
        compacting.compact(spark, archived, date(1999, 1, 1))


def test_parquet_that_is_not_equal_is_removed(archived: str, cold: ObjectStore) -> None:
    [piece] = compacting.pieces(read_catalog(cold).objects)
    buffer = io.BytesIO()
    rows = compacting._rows(cold, piece.objects[1:])
    pq.write_table(rows, buffer)
    cold.put(piece.name, buffer.getvalue())
    with pytest.raises(ObjectConflict, match="was removed"):
        compacting.compact_piece(cold, piece)
    assert cold.size(piece.name) is None
    assert compacting.compact_piece(cold, piece).rows == 60


def test_pieces_are_neighbours_up_to_a_number_of_rows(archived: str, cold: ObjectStore) -> None:
    found = list(compacting.pieces(read_catalog(cold).objects, rows=25))
    assert [sum(each.rows for each in piece.objects) for piece in found] == [20, 20, 20]
    assert len({piece.name for piece in found}) == 3


def test_whoever_relies_on_the_manifests_stops_at_a_damaged_one(
    spark: SparkSession, archived: str, cold: ObjectStore
) -> None:
    name = read_catalog(cold).manifests[0].name
    cold.delete(name)
    cold.put(name, gzip.compress(b"{}"))
    with pytest.raises(HoldfastError, match="cannot be read"):
        compacting.compact(spark, archived, NOW.date())
