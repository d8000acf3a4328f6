"""`holdfast chaos` without the crash rig, which is a distribution of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HIDING = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "holdfast_chaos":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from holdfast.cli import main
main(sys.argv[1:])
"""


def without_the_rig(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDING, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [[], ["run", "--minutes", "2"], ["controls"], ["--help"]])
def test_one_line_says_how_to_get_it(arguments: list[str], tmp_path: Path) -> None:
    done = without_the_rig(tmp_path, "chaos", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "holdfast: the crash rig is not installed: pip install holdfast-chaos\n"


def test_the_help_page_lists_it(tmp_path: Path) -> None:
    done = without_the_rig(tmp_path, "--help")
    assert done.returncode == 0
    assert "  chaos " in done.stdout


def test_with_the_rig_it_has_commands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "chaos", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in ("run", "controls", "simulate"))
