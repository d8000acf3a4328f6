"""A real cluster of NATS servers, each with its own folder and ports, every write synced."""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nats

from holdfast.embedded import Nats, files, ports
from kit import until

_CONFIG = """\
server_name: "{name}"
listen: "127.0.0.1:{port}"
system_account: SYS
accounts {{
  SYS {{ exports: [ {{ service: "$SYS.REQ.SERVER.PING.JSZ", accounts: [HOLDFAST] }} ] }}
  HOLDFAST {{
    jetstream: enabled
    users: [ {{ user: holdfast, password: "{secret}" }} ]
    imports: [ {{ service: {{ account: SYS, subject: "$SYS.REQ.SERVER.PING.JSZ" }} }} ]
  }}
}}
jetstream {{ store_dir: "./data", sync_interval: "{sync_interval}" }}
cluster {{
  name: "holdfast", listen: "127.0.0.1:{route}", routes: [ {routes} ]
  ping_interval: "1s", ping_max: 2
}}
"""


class Node(Nats):
    """One server of a cluster. Its routes are known when it is prepared."""

    ports_needed = 2

    def __init__(self, folder: Path, name: str, sync_interval: str = "always") -> None:
        super().__init__(folder, sync_interval)
        self.name = name
        self.route = ports.keep(files.private_folder(folder), self.ports_needed)[1]
        """The port at which the other servers connect."""
        self.routes: list[int] = []

    def prepare(self) -> None:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes)
        config = _CONFIG.format(
            name=self.name,
            port=self.port,
            secret=self.secret,
            sync_interval=self._sync_interval,
            route=self.route,
            routes=routes,
        )
        files.write_private(self.folder / "nats.conf", config)


class Cluster:
    """Servers that form one cluster, and a URL that names them all."""

    def __init__(self, folder: Path, size: int = 3, sync_interval: str = "always") -> None:
        secret = secrets.token_hex(16)
        self.nodes = [Node(folder / f"n{number}", f"n{number}", sync_interval) for number in range(size)]
        for node in self.nodes:
            files.write_private(files.private_folder(node.folder) / "secret", secret)
        routes = [node.route for node in self.nodes]
        for node in self.nodes:
            node.routes = routes

    def start(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        """All servers in one URL, with the credentials once."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"nats://holdfast:{self.nodes[0].secret}@{hosts}"

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    async def ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        """The reply of the JetStream API to a plain client; an error where nobody answered."""
        for node in self.nodes:
            if node.running:
                try:
                    async with await nats.connect(
                        node.url, allow_reconnect=False, connect_timeout=1
                    ) as client:
                        data = b"" if body is None else json.dumps(body).encode()
                        reply = await client.request(subject, data, timeout=1)
                        return dict(json.loads(reply.data))
                except (nats.errors.Error, TimeoutError, OSError):
                    continue
        return {"error": {"description": "nobody answered"}}

    async def stream(self, name: str = "HOLDFAST") -> dict[str, Any]:
        return await self.ask(f"$JS.API.STREAM.INFO.{name}")

    async def ready(self) -> None:
        """Wait until streams can be made: every server knows who leads, and is known."""

        async def sized() -> bool:
            asked = {"name": "READY", "subjects": ["ready"], "num_replicas": min(len(self.nodes), 3)}
            reply = await self.ask("$JS.API.STREAM.CREATE.READY", asked)
            return "error" not in reply

        await until(sized)
        await self.ask("$JS.API.STREAM.DELETE.READY")

    async def leader(self) -> Node:
        """The server that leads the stream, once all its replicas are current."""

        async def found() -> str | None:
            cluster = (await self.stream()).get("cluster", {})
            current = all(each.get("current") for each in cluster.get("replicas", ()))
            return cluster.get("leader") if current else None

        return self.node(str(await until(found)))

    async def emptied(self) -> None:
        """Remove every stream."""
        for name in (await self.ask("$JS.API.STREAM.NAMES")).get("streams") or ():
            await self.ask(f"$JS.API.STREAM.DELETE.{name}")


@contextmanager
def cluster(size: int = 3, sync_interval: str = "always") -> Iterator[Cluster]:
    """A cluster in a temporary folder."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-"))
        made = Cluster(Path(folder), size, sync_interval)
        stack.callback(made.stop)
        made.start()
        asyncio.run(made.ready())
        yield made
