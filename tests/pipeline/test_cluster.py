"""The data source on a standalone cluster whose executors do not have Holdfast installed."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

import holdfast
from holdfast import Event
from holdfast.embedded import SparkCluster
from holdfast.embedded.wheels import java_home
from holdfast.pipeline import bundle

Drive = Callable[..., str]
pytestmark = pytest.mark.timeout(300)

OWN_SESSION = """
import sys
from holdfast.pipeline.session import session
master, url = sys.argv[1:]
with session(master, settings={"spark.executor.memory": "512m"}) as spark:
    rows = spark.read.format("holdfast").options(url=url, channel="orders", minPartitions=4).load()
    rows = rows.selectExpr("id", "spark_partition_id() AS task").collect()
    print(len({row.task for row in rows}), *sorted(row.id for row in rows))
"""

SUBMITTED = """
import sys
from pyspark.sql import SparkSession
from holdfast.pipeline.source import HoldfastSource
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(HoldfastSource)
rows = spark.read.format("holdfast").options(url=sys.argv[1], channel="orders", minPartitions=4).load()
rows = rows.selectExpr("id", "spark_partition_id() AS task").collect()
print(len({row.task for row in rows}), *sorted(row.id for row in rows))
spark.stop()
"""


@pytest.fixture
def orders(empty_redis: str) -> str:
    """The URL of a store with forty orders."""
    with holdfast.connect_sync(empty_redis) as hf:
        hf.publish_many("orders", [Event({}, f"o{number:02}") for number in range(40)])
    return empty_redis


@pytest.fixture
def lacks_holdfast(bare_python: Path) -> Path:
    done = subprocess.run(
        [bare_python, "-c", "import pyarrow, redis, holdfast"], capture_output=True, text=True
    )
    if done.returncode == 0:
        pytest.skip("Holdfast is installed among its dependencies, so nothing would have to be shipped")
    assert "No module named 'holdfast'" in done.stderr
    return bare_python


WANTED = ["4", *(f"o{number:02}" for number in range(40))]


@pytest.mark.slow
def test_our_session_brings_the_package_to_the_executors(
    cluster: SparkCluster, orders: str, drive: Drive, lacks_holdfast: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(OWN_SESSION)
    printed = drive(sys.executable, "job.py", cluster.url, orders, PYSPARK_PYTHON=str(lacks_holdfast))
    assert printed.split() == WANTED


@pytest.mark.slow
def test_spark_submit_brings_the_package_as_a_bundle(
    cluster: SparkCluster, orders: str, drive: Drive, lacks_holdfast: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(SUBMITTED)
    drive(sys.executable, "-m", "holdfast.pipeline.bundle", "holdfast.zip")
    submit = Path(sys.executable).with_name("spark-submit")
    settings = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    printed = drive(
        *(submit, "--master", cluster.url, *settings, "--py-files", "holdfast.zip", "job.py", orders),
        PYSPARK_PYTHON=str(lacks_holdfast),
        JAVA_HOME=str(java_home(tmp_path)),
    )
    assert printed.split() == WANTED


INGEST = """
import sys

from holdfast.cli import main
from holdfast.pipeline.wal import segments

segments.read = None  # not by the driver
sys.argv = ["holdfast", "ingest", "--once", "--master", sys.argv[1], "--config", "holdfast.yaml"]
main()
"""


@pytest.mark.slow
def test_spark_submit_ingests_into_delta_on_executors(
    cluster: SparkCluster, empty_redis: str, drive: Drive, tmp_path: Path
) -> None:
    """Payloads that do not compress, so that what is loaded at once is large. The driver reads no segment."""
    with holdfast.connect_sync(empty_redis) as hf:
        for start in range(0, 12_000, 2_000):
            events = [Event({"x": secrets.token_hex(400)}, f"o{start + n}") for n in range(2_000)]
            hf.publish_many("orders", events)
    (tmp_path / "ingest.py").write_text(INGEST)
    (tmp_path / "holdfast.yaml").write_text(
        f"url: {empty_redis}\n"
        "ingest:\n  channels: [orders]\n"
        f"  warehouse: delta://{tmp_path}/tables\n  wal: {{path: {tmp_path}/wal}}\n"
    )
    settings = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    drive(
        *(Path(sys.executable).with_name("spark-submit"), "--master", cluster.url, *settings),
        *("ingest.py", cluster.url),
        PYSPARK_PYTHON=sys.executable,
        JAVA_HOME=str(java_home(tmp_path)),
    )
    table = DeltaTable(tmp_path / "tables" / "events")
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == sorted(f"o{n}" for n in range(12_000))


@pytest.mark.parametrize("arguments", [[], ["holdfast"], ["a.zip", "b.zip"]])
def test_the_bundle_says_how_it_is_made(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.pipeline.bundle", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "usage: python -m holdfast.pipeline.bundle FILE.zip\n"
    assert list(tmp_path.iterdir()) == []


def test_the_bundle_holds_the_files_beside_the_code(tmp_path: Path, drive: Drive, bare_python: Path) -> None:
    path = bundle.build(tmp_path / "holdfast.zip")
    code = "from holdfast.backends.redis import session; print(session.__file__, len(session.SCRIPTS))"
    file, count = drive(bare_python, "-c", code, PYTHONPATH=str(path)).split()
    assert file.startswith(str(path))
    assert int(count) > 20
