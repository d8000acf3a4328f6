"""Systems on real stores: in this process, and as processes of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from running import Up

import holdfast
from holdfast.embedded import Postgres
from kit import in_memory


@pytest.fixture
async def bus(database: str) -> AsyncIterator[holdfast.Bus]:
    async with holdfast.connect(database) as opened:
        yield opened


@pytest.fixture(params=["database", "empty_redis", "empty_nats"], ids=["postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store of each kind."""
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture
async def each(url: str) -> AsyncIterator[holdfast.Bus]:
    """A bus on an empty store of each kind, one after the other."""
    async with holdfast.connect(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server that tests kill."""
    with in_memory():
        server = Postgres().start()
    yield server
    server.stop()


@pytest.fixture
async def frail(database: str, mortal: Postgres) -> AsyncIterator[list[str]]:
    """A store that lives, and one that may be killed."""
    yield [database, mortal.url]
    await asyncio.to_thread(mortal.start)


@pytest.fixture
def python(database: str, tmp_path: Path) -> Iterator[Up]:
    """Starts Python with these arguments, in a folder of its own; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        with (tmp_path / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=tmp_path,
                env=os.environ | {"HOLDFAST_URL": database} | environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def up(python: Up) -> Up:
    """Starts `holdfast up` on a free port."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return python("-m", "holdfast.cli", "up", "--port", "0", *arguments, **environment)

    return start
