"""`holdfast up` as a process: its lines, its signals and its exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import Up

import holdfast
from holdfast.embedded import ports

STUBBORN = """
import asyncio
from holdfast.cli import main
from holdfast.server import app
from holdfast.server.services import LifecycleService

async def ignore(self):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("not yet", flush=True)

LifecycleService.run = ignore
main(["up", "--no-http", "--no-sweeper"])
"""

PARTS = {"http", "watch", "sessions", "operations", "dlq-summary", "lifecycle-0", "sweeper-0"}

BARE = """
import os
import sys
os.umask(0)
from importlib.abc import MetaPathFinder

ABSENT = {"pyspark", "pyarrow", "duckdb", "deltalake", "obstore", "isal", "pandas"}

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
sys.modules["pyspark"] = None
from holdfast.cli import main
main(["up", "--json", "--port", "0"])
"""


def lines(process: subprocess.Popen[str], part: str, phase: str) -> dict[str, Any]:
    """Read JSON lines until a part is in a phase; answers that line."""
    assert process.stdout is not None
    for text in process.stdout:
        line: dict[str, Any] = json.loads(text)
        if (line["part"], line["phase"]) == (part, phase):
            return line
    raise AssertionError(f"{part} was never {phase}")


@pytest.mark.dealt("number")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_serves_drains_and_ends_with_0(up: Up, number: signal.Signals) -> None:
    process = up("--json")
    url = lines(process, "http", "running")["status"]
    lines(process, "sweeper-0", "running")
    assert httpx.get(f"{url}/healthz").status_code == 200
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    last = {line["part"]: line["phase"] for line in map(json.loads, out.splitlines())}
    assert last == dict.fromkeys(PARTS, "stopped")
    assert process.returncode == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_plain_lines_are_one_per_change(up: Up) -> None:
    process = up("--no-http", "--no-sweeper")
    assert process.stdout is not None
    found = [process.stdout.readline().split() for _ in range(2)]
    assert found == [["lifecycle-0", "starting"], ["lifecycle-0", "running", "the", "store", "answers"]]
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert out.split() == ["lifecycle-0", "stopped", "stopped"]
    assert process.returncode == 0


def test_a_part_that_dies_is_shown_as_being_restarted(up: Up) -> None:
    # The first hit is the opening of the store.
    process = up("--no-sweeper", "--json", HOLDFAST_FAILPOINTS="lifecycle.after_read=raise:1")
    url = lines(process, "http", "running")["status"]
    line = lines(process, "lifecycle-0", "restarting")
    assert (line["status"], line["restarts"]) == ("FailpointError: failpoint lifecycle.after_read", 1)
    for _ in range(1000):  # it runs for a moment between two restarts
        if httpx.get(f"{url}/readyz").status_code == 503:
            break
    else:
        raise AssertionError("it was always ready")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_second_signal_ends_it_at_once_with_1(python: Up, tmp_path: Path) -> None:
    process = python("-c", STUBBORN)
    assert process.stdout is not None
    while "running" not in process.stdout.readline():
        continue
    process.terminate()
    while process.stdout.readline() != "not yet\n":
        continue
    process.terminate()
    assert process.wait(timeout=60) == 1
    assert "aborted" in (tmp_path / "stderr").read_text()


def test_without_spark_it_says_so_and_runs_the_rest(python: Up, tmp_path: Path) -> None:
    process = python("-c", BARE, HOLDFAST_URL="", DATABASE_URL="")
    url = lines(process, "http", "running")["status"]
    with httpx.Client(base_url=url) as browser:
        assert follow(browser, tmp_path).status_code == 303
        for path in ("/readyz", "/pipeline", "/trace?id=x", "/channels"):
            assert browser.get(path).status_code == 200, path
    process.terminate()
    out, _ = process.communicate(timeout=60)
    parts = {json.loads(line)["part"] for line in out.splitlines()}
    assert parts == PARTS
    assert process.returncode == 0
    assert open_to_others(tmp_path / ".holdfast") == []
    assert "need Spark: pip install 'holdfast[spark]'; the rest runs" in (tmp_path / "stderr").read_text()


def follow(browser: httpx.Client, folder: Path) -> httpx.Response:
    """Press the button of the page that the printed link leads to."""
    [link] = re.findall(r"(http://\S+/login\?link=\S+)", (folder / "stderr").read_text())
    assert browser.get(link).status_code == 200
    sent = {"link": link.partition("link=")[2]}
    return browser.post("/login", data=sent, headers={"Origin": str(browser.base_url).rstrip("/")})


def test_up_makes_the_first_token_and_prints_a_link_that_works_once(up: Up, tmp_path: Path) -> None:
    process = up("--no-sweeper", "--json")
    url = lines(process, "http", "running")["status"]
    [address, file] = sorted((tmp_path / ".holdfast").iterdir())
    assert address.read_text().strip() == url  # for `tokens link`: the port is not the configured one
    text = file.read_text().strip()
    assert text.split("_", 2)[2] not in (tmp_path / "stderr").read_text()
    with httpx.Client(base_url=url) as browser, httpx.Client(base_url=url) as other:
        assert browser.get("/channels").status_code == 303
        assert follow(browser, tmp_path).status_code == 303
        assert browser.get("/channels").status_code == 200
        assert follow(other, tmp_path).status_code == 401
        assert other.get("/channels").status_code == 303
        asked = {"Authorization": f"Bearer {text}"}
        assert other.get("/api/v1/channels", headers=asked).status_code == 200
        assert other.get("/api/v1/channels").status_code == other.get("/metrics").status_code == 401
    process.terminate()
    process.communicate(timeout=60)
    assert not address.exists()
    again = up("--no-sweeper", "--json")
    lines(again, "http", "running")
    assert "login?link=" in (tmp_path / "stderr").read_text()
    assert file.read_text().strip() == text  # the same one: it is made once
    again.terminate()
    again.communicate(timeout=60)


def test_a_store_that_has_tokens_gets_no_other_one(up: Up, database: str, tmp_path: Path) -> None:
    with holdfast.connect_sync(database) as bus:
        bus.read("orders")  # the store is there
    made = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "tokens", "create", "reader", "--url", database],
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert made.stdout
    process = up("--no-sweeper", "--json")
    lines(process, "http", "running")
    assert "holdfast tokens link ID" in (tmp_path / "stderr").read_text()
    assert not (tmp_path / ".holdfast").exists()
    process.terminate()
    process.communicate(timeout=60)


def open_to_others(folder: Path) -> list[Path]:
    """What another user could read, list or enter."""
    return [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


def test_flags_go_over_the_file(up: Up, tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text("server: {host: nowhere.invalid, port: 1}\nsweeper: {interval: 1h}\n")
    process = up("--json", "--host", "127.0.0.1", "--config", "h.yaml")
    assert lines(process, "http", "running")["status"].startswith("http://127.0.0.1:")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_what_cannot_start_says_why(python: Up, tmp_path: Path) -> None:
    [port] = ports.choose(1)
    nowhere = f"postgresql://u@127.0.0.1:{port}/d"
    for arguments, code, message in (
        (["--url", nowhere], 3, "holdfast: "),
        (["--host", "nowhere.invalid"], 2, "cannot listen on nowhere.invalid port 8420"),
        (["--port", "70000"], 2, "--port: server.port: 70000 is too large; write at most 65535"),
    ):
        process = python("-m", "holdfast.cli", "up", *arguments)
        process.communicate(timeout=60)
        assert process.returncode == code
        assert message in (tmp_path / "stderr").read_text()
