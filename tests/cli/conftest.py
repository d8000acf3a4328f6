"""The command line against a real store: commands in this process, workers in their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from shell import Answer, Run, Start, call

import holdfast
from holdfast.bus.sync import SyncBus


@pytest.fixture
def run(database: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on this test's store, on a thread of its own: it brings an event loop with it."""
    monkeypatch.setenv("HOLDFAST_URL", database)

    def on_thread(*arguments: str) -> Answer:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call, arguments).result()

    return on_thread


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a command as a process, in a folder of its own; none outlives the test."""
    started: list[subprocess.Popen[str]] = []
    environment = os.environ | {"HOLDFAST_URL": database}

    def popen(*arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *arguments],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                pipe.close() if pipe else None


@pytest.fixture
def hf(database: str) -> Iterator[SyncBus]:
    """The same store through the library."""
    with holdfast.connect_sync(database) as bus:
        yield bus
