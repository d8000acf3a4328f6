"""`holdfast serve` as a process: HTTP alone, with tokens, and a quiet end."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast
from kit import CHANNEL, CONSUMER, bury, claim, publish, subscribe, until

Up = Callable[..., "subprocess.Popen[str]"]
OPEN = {"HOLDFAST_SERVER__OPEN": "true"}


@pytest.fixture
def serve(python: Up) -> Up:
    """Starts `holdfast serve` on a free port."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return python("-m", "holdfast.cli", "serve", "--port", "0", "--json", *arguments, **environment)

    return start


def url(process: subprocess.Popen[str]) -> str:
    """Where it listens, as soon as it says so."""
    assert process.stdout is not None
    for text in process.stdout:
        line: dict[str, Any] = json.loads(text)
        if (line["part"], line["phase"]) == ("http", "running"):
            return str(line["status"])
    raise AssertionError("it never ran")


@pytest.mark.dealt("number")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_http_and_operations_and_nothing_else(serve: Up, number: signal.Signals) -> None:
    process = serve(**OPEN)
    at = url(process)
    parts = {each["name"] for each in httpx.get(f"{at}/readyz").json()["parts"]}
    assert parts >= {"http", "operations"}
    assert not any(name.startswith(("lifecycle", "sweeper", "archive", "ingest")) for name in parts)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{at}/healthz")


@pytest.mark.dealt("host")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - that is what is tested
def test_it_lets_nobody_in_without_a_token_and_says_so(serve: Up, tmp_path: Path, host: str) -> None:
    process = serve("--host", host)
    at = url(process).replace("0.0.0.0", "127.0.0.1")  # noqa: S104
    assert httpx.get(f"{at}/dlq-status").status_code == httpx.get(f"{at}/metrics").status_code == 401
    refused = httpx.delete(f"{at}/channel/a/consumer/b/dlq")
    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")
    process.terminate()
    process.communicate(timeout=60)
    assert "no token exists, so that nobody gets in" in (tmp_path / "stderr").read_text()


def test_what_a_setting_opens_is_in_the_log(serve: Up, tmp_path: Path) -> None:
    process = serve(**OPEN)
    assert httpx.get(f"{url(process)}/dlq-status").status_code == 200
    process.terminate()
    process.communicate(timeout=60)
    assert "every program on this machine may do everything" in (tmp_path / "stderr").read_text()
    process = serve("--host", "0.0.0.0", **OPEN)  # noqa: S104 - that is what is tested
    process.communicate(timeout=60)
    assert process.returncode == 2
    assert "server.open is for loopback only" in (tmp_path / "stderr").read_text()


async def test_it_does_what_was_asked_for(serve: Up, bus: holdfast.Bus) -> None:
    """A large purge is accepted by one process and done by its operations part."""
    store = bus.partitions.all[0].backend
    await subscribe(store)
    names = [f"event-{number}" for number in range(1001)]
    await publish(store, *names)
    for job in await claim(store, len(names)):
        assert await bury(store, job)
    process = serve(**OPEN)
    at = url(process)
    async with httpx.AsyncClient(base_url=at) as client:
        answer = await client.delete(f"/channel/{CHANNEL}/consumer/{CONSUMER}/dlq")
        assert (answer.status_code, answer.json()["expected"]) == (202, 1001)

        async def purged() -> bool:
            [shown] = (await client.get("/dlq-status")).json()["consumers"]
            return bool(shown["deadCount"] == 0)

        await until(purged)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
