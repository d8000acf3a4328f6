"""The board of `holdfast up` at a terminal: where to look, a line for each part, logs in a folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def at_terminal(database: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`holdfast up` whose output is a terminal; and our end of it."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "up", "--port", "0"],
        cwd=folder,
        env=os.environ | {"HOLDFAST_URL": database, "TERM": "xterm", "COLUMNS": "100"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, pattern: str) -> str:
    """What the terminal shows, without its colours, as soon as it has the pattern."""
    shown = ""
    while not re.search(pattern, shown):
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown + os.read(terminal, 65536).decode())
    return shown


def test_at_a_terminal_it_says_where_to_look_and_keeps_its_logs_in_a_folder(
    database: str, tmp_path: Path
) -> None:
    with at_terminal(database, tmp_path) as (process, terminal):
        shown = read_until(terminal, r"sweeper-0\s+running\s+nothing to do")
        found = re.search(r"control room  (http://127\.0\.0\.1:\d+)", shown)
        assert found is not None
        assert httpx.get(f"{found[1]}/login").status_code == 200
        link = re.search(rf"{re.escape(found[1])}/login\?link=\S+", shown)
        assert link is not None
        process.send_signal(signal.SIGINT)
        rest = read_until(terminal, r"sweeper-0\s+stopped")
        assert process.wait(timeout=60) == 0
    assert "drain" not in shown + rest
    log = (tmp_path / ".holdfast" / "logs" / "up.log").read_text()
    assert "login?link=" not in log
