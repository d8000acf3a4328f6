"""The import of the package: nothing that a plain program does without."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("pydantic", "pyspark", "pyarrow", "fastapi", "typer", "yaml", "duckdb", "opentelemetry")


def test_a_plain_import_loads_nothing_heavy() -> None:
    code = f"import sys, holdfast; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
