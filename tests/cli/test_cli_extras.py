"""What is not installed is named with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.program import extra_for

HIDING = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from holdfast.cli import main
main(sys.argv[2:])
"""
SPARK = "pyspark,pyarrow,duckdb,deltalake,obstore"
SERVER = "fastapi,starlette,uvicorn,prometheus_client,jinja2"


@pytest.mark.parametrize(
    ("hidden", "arguments", "extra"),
    [
        (SERVER, ["serve", "--url", "postgresql://127.0.0.1:1/x"], "server"),
        ("redis", ["channels", "list", "--url", "redis://127.0.0.1:1/0"], "redis"),
        ("nats", ["channels", "list", "--url", "nats://127.0.0.1:1"], "nats"),
        ("psycopg", ["channels", "list", "--url", "postgresql://127.0.0.1:1/x"], "postgres"),
        (SPARK, ["archive", "verify", "--destination", "cold"], "spark"),
        (SPARK, ["failed", "list", "--wal", "wal"], "spark"),
    ],
)
def test_the_extra_is_named(hidden: str, arguments: list[str], extra: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HIDING, hidden, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"pip install 'holdfast[{extra}]'\n")
    assert "Traceback" not in done.stderr


def test_a_monitor_is_told_that_nothing_is_known(tmp_path: Path) -> None:
    arguments = ["dlq", "check", "--warn", "1", "--crit", "2", "--url", "redis://127.0.0.1:1/0"]
    command = [sys.executable, "-c", HIDING, "redis", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.startswith("DEAD LETTERS UNKNOWN")) == (3, True)


def test_a_module_of_somebody_else_has_no_extra() -> None:
    assert extra_for(ModuleNotFoundError("No module named 'shop'", name="shop")) is None
