"""Spark for the whole suite: one session on this machine, and one small cluster for those who ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.embedded import S3, SparkCluster
from holdfast.pipeline import session
from holdfast.pipeline.stores.s3 import S3Store

Drive = Callable[..., str]
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For tables of some rows: to compile queries, or to plan them again, costs more than it saves."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session's Spark: two threads of one process."""
    with session.session("local[2]", settings=SMALL) as started:
        yield started


@pytest.fixture(params=["database", "empty_redis", "empty_nats"], ids=["postgres", "redis", "nats"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store, once for every kind."""
    url: str = request.getfixturevalue(request.param)
    with holdfast.connect_sync(url):
        return url


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """The session's S3 server, with a bucket. Whoever kills it starts it again."""
    with S3() as server:
        S3Store("bucket", "", _environment(server)).put("founded", b"")  # comes into being with an object
        yield server


def _environment(server: S3) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": server.region,
    }


@pytest.fixture
def aws(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that leads to it, as anybody would set it."""
    for name, value in _environment(s3).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers. Jobs on it are driven from processes of their own: see `drive`."""
    with SparkCluster(workers=2, cores=1, memory="1g") as started:
        yield started


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has all that Holdfast needs, and not Holdfast itself."""
    wheels = next(path for path in sys.path if (Path(path) / "pyspark").is_dir())
    program = tmp_path_factory.mktemp("bare") / "python"
    # Without `site`, the links of editable installs are not followed.
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{wheels}" exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    """Run a command in a folder of its own, without a store in the environment; answers what it printed."""

    def run(*command: object, **environment: str) -> str:
        stores = ("HOLDFAST_URL", "DATABASE_URL", "PYSPARK_PYTHON")
        inherited = {name: value for name, value in os.environ.items() if name not in stores}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
