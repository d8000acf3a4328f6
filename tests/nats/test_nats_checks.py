"""What `check` says of a server's real settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import checks
from holdfast.embedded import Nats, files


class Silent(Nats):
    """A server whose administrator lets nobody ask."""

    def prepare(self) -> None:
        login = f'authorization {{ user: holdfast, password: "{self.secret}" }}'
        config = f'listen: "127.0.0.1:{self.port}"\n{login}\njetstream {{ store_dir: "./data" }}\n'
        files.write_private(self.folder / "nats.conf", config)


async def said(server: Nats) -> dict[str, tuple[str, str]]:
    backend = NatsBackend(server.url)
    await backend.open()
    try:
        return {finding.subject: (finding.level, finding.message) for finding in await backend.check()}
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("interval", "level", "words"),
    [
        ("always", "ok", "always: a power cut loses nothing"),
        ("10s", "warning", "10s: a power cut loses up to"),
    ],
)
async def test_the_flush_to_disk_is_told_in_words(
    tmp_path: Path, interval: str, level: str, words: str
) -> None:
    with Nats(tmp_path, sync_interval=interval) as server:
        told = (await said(server))["sync_interval"]
    assert (told[0], told[1].startswith(words)) == (level, True)


async def test_the_default_is_two_minutes_and_not_two_million_seconds(relaxed_nats: Nats) -> None:
    told = (await said(relaxed_nats))["sync_interval"]
    assert (told[0], told[1].startswith("2m: ")) == ("warning", True)


async def test_what_only_the_system_account_knows_is_said_to_be_unknown(tmp_path: Path) -> None:
    with Silent(tmp_path) as server:
        findings = await said(server)
    level, message = findings["sync_interval"]
    assert (level, "two minutes" in message, "always" in message) == ("warning", True, True)
    assert [findings[name][0] for name in ("storage", "replicas", "version")] == ["ok"] * 3


@pytest.mark.parametrize("limit", ["max_age", "max_msgs"])
async def test_a_stream_that_loses_by_itself_is_an_error(
    backend: NatsBackend, client: Client, limit: str
) -> None:
    info = json.loads((await client.request("$JS.API.STREAM.INFO.HOLDFAST")).data)
    config = json.dumps(info["config"] | {limit: 10**12}).encode()
    assert "error" not in json.loads((await client.request("$JS.API.STREAM.UPDATE.HOLDFAST", config)).data)
    [finding] = [each for each in await backend.check() if each.subject == "limits of HOLDFAST"]
    assert finding.level == "error"
    assert finding.message.startswith(f"{limit}: the server removes events and jobs by itself")


def test_storage_and_replicas_are_told_in_words() -> None:
    assert checks._storage({"storage": "memory"}).level == "error"
    assert "survive one server" in checks._replicas({"num_replicas": 1}, {}).message
