"""What a person at a terminal sees: results and warnings. The rest is in logs, which are named."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

LOGS = """
import logging
from holdfast.cli import logs
from holdfast.config.config import Config
logs.configure_driver("ingest", None, Config(), as_json=False)
logging.getLogger("holdfast").info("quiet")
logging.getLogger("holdfast").warning("loud")
"""
SPARK = """
import sys
from types import ModuleType
from holdfast.cli import program
from holdfast.cli.spark import session

def start(master: str) -> None:
    with session(master, name="test") as spark:
        print(spark.range(3).count())

module = sys.modules["holdfast.cli.start"] = ModuleType("holdfast.cli.start")
module.register = lambda app: app.command()(start)
program._COMMANDS["start"] = "start"
program.main(["start", sys.argv[1]])
"""


def at_terminal(folder: Path, code: str, *arguments: str) -> tuple[int, str]:
    """Run Python with a terminal for its output; returns how it ended, and what stood there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        while part := _read(ours):
            seen += part
    os.close(ours)
    return process.returncode, seen.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end was closed
        return b""


def test_a_driver_logs_into_a_file_and_says_which(tmp_path: Path) -> None:
    code, seen = at_terminal(tmp_path, LOGS)
    assert (code, seen) == (0, "log: .holdfast/logs/ingest.log\nWARNING loud\n")
    written = (tmp_path / ".holdfast/logs/ingest.log").read_text()
    assert "INFO quiet" in written
    assert "WARNING loud" in written


def test_without_a_terminal_a_driver_logs_to_stderr(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], cwd=tmp_path, capture_output=True, text=True)
    assert '"message": "quiet"' in done.stderr
    assert not (tmp_path / ".holdfast").exists()


@pytest.mark.slow
def test_java_speaks_into_a_file(tmp_path: Path) -> None:
    assert at_terminal(tmp_path, SPARK, "local[1]") == (0, "3\n")
    assert (tmp_path / ".holdfast/logs/spark.log").exists()


@pytest.mark.slow
def test_where_spark_fails_the_end_of_its_log_is_shown(tmp_path: Path) -> None:
    code, seen = at_terminal(tmp_path, SPARK, "nonsense://")
    assert code == 1
    assert "these are the last lines of .holdfast/logs/spark.log\nholdfast: Spark failed: " in seen
    assert "Traceback" not in seen
