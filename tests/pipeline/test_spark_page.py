"""The examples of docs/spark.md that read channels run as they stand there, but for the address of the store.

What it says of `spark-submit` is run by test_cluster.py, with other arguments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import Event
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.options import _OPTIONS
from holdfast.pipeline.source import SCHEMA

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
REDIS, NATS, POSTGRES, _ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"o-1 *\|customer-7\|.*\| *17\|")


@pytest.fixture
def orders(empty_redis: str) -> str:
    """The first example, on a store with an order."""
    with holdfast.connect_sync(empty_redis) as hf:
        hf.publish("orders", {"total": 17}, id="o-1", key="customer-7")
    return REDIS.replace("redis://localhost:6379/0", empty_redis)


def test_a_redis_stream_as_a_table(
    spark: SparkSession, orders: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pipeline.session.session", lambda _: nullcontext(spark))
    exec(orders, {})  # noqa: S102 - our own page
    assert TABLE.search(capsys.readouterr().out)


@pytest.mark.slow
def test_it_is_one_in_a_process_of_its_own_too(
    orders: str, drive: Callable[..., str], tmp_path: Path
) -> None:
    """Where nobody has registered the source."""
    (tmp_path / "example.py").write_text(orders)
    assert TABLE.search(drive(sys.executable, "example.py"))


def test_jetstream_as_a_stream(spark: SparkSession, empty_nats: str, tmp_path: Path) -> None:
    example = NATS.replace("nats://localhost:4222", empty_nats).replace("lake/", f"{tmp_path}/")
    for names in (["e0", "e1"], ["e2"]):
        with holdfast.connect_sync(empty_nats) as hf:
            hf.publish_many("gbe.events.audit", [Event({}, name) for name in names])
        exec(example, {})  # noqa: S102 - our own page
    rows = spark.read.parquet(str(tmp_path / "events")).collect()
    assert sorted(row.id for row in rows) == ["e0", "e1", "e2"]


def advance(url: str, by: timedelta) -> None:
    """Let the store's time pass."""
    with Connection([url]) as connection:
        connection.run(connection.backends[0].advance(by))


def test_a_postgresql_queue(spark: SparkSession, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    now, half = datetime.now(UTC), timedelta(minutes=30)
    with holdfast.connect_sync(database) as hf:
        hf.publish("orders", {}, id="o-1", type="order.placed")
        hf.publish("payments", {}, id="p-1", type="payment.made")
        hf.publish("orders", {}, id="o-0", type="order.placed", time=now - timedelta(days=1))  # imported now
        hf.publish("orders", {}, id="o-00", type="order.placed", time=now - timedelta(days=2))
    advance(database, timedelta(days=1))
    with holdfast.connect_sync(database) as hf:
        hf.publish("orders", {}, id="o-2", type="order.placed", time=now)  # late by a day
        hf.publish("orders", {}, id="o-3", type="order.placed")
    example = POSTGRES.replace("postgresql://localhost/shop", database)
    example = example.replace("2026-07-01T12:00:00Z", (now - half).isoformat())
    example = example.replace("2026-07-01T13:00:00Z", (now + half).isoformat())
    exec(example, {})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert re.search(r"orders\|order.placed\| *2\|\n\|payments\|payment.made\| *1\|", printed)


def test_the_page_names_every_option_and_every_column() -> None:
    for name in _OPTIONS:
        assert f"| `{name}` |" in PAGE
    for column in SCHEMA.split(", "):
        assert f"`{column.split()[0]}`" in PAGE
