"""What `make setup` says of a machine that lacks something."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "machine.py"
Usage = namedtuple("Usage", "total used free")


def lack(folder: Path) -> str | None:
    said: str | None = run_path(str(SCRIPT))["lack"](str(folder))
    return said


def test_a_machine_that_has_all_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 4 << 30))
    assert lack(tmp_path / "venv") is None


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        (sys, "version_info", (3, 10, 13), "Python 3.11 to 3.14 is needed, and .* is 3.10: .*make PYTHON="),
        (sys, "version_info", (3, 15, 0), "Python 3.11 to 3.14 is needed, and .* is 3.15: .*make PYTHON="),
        (sys, "platform", "win32", "no wheels for win32"),
        (platform, "machine", lambda: "riscv64", "no wheels for .* on riscv64"),
        (shutil, "disk_usage", lambda _: Usage(0, 0, 1 << 30), "has 1.0 GB free, and 3 are needed"),
        (os, "access", lambda *_: False, "is missing or read-only"),
    ],
)
def test_what_is_missing_is_said(
    place: object, name: str, value: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(place, name, value)
        found = lack(tmp_path / "venv")
    assert re.search(said, found or "")


@pytest.mark.parametrize("libc", [("", ""), ("glibc", "2.17")])
def test_an_old_or_foreign_libc_is_said(
    libc: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert "glibc 2.28 or newer is needed" in (lack(tmp_path / "venv") or "")


def test_a_python_without_ensurepip_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "no module ensurepip: on Debian and Ubuntu, apt-get install python3-venv" in (
        lack(tmp_path / "venv") or ""
    )


def test_an_old_python_can_read_it() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_make_says_that_there_is_no_such_python(tmp_path: Path) -> None:
    command = ["make", "setup", "PYTHON=python-that-is-not", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no python-that-is-not on the PATH: install Python, or name it" in done.stderr
    assert not (tmp_path / "venv").exists()
