"""PgBouncer in transaction mode, from Debian's package: each transaction may be on another connection."""

from __future__ import annotations

import os
import shutil
from urllib.parse import urlsplit, urlunsplit

import pytest

from holdfast.embedded.files import write_private
from holdfast.embedded.process import Server, answers

_CONFIG = """\
[databases]
* = host={host} port={upstream} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
server_lifetime = 3600
ignore_startup_parameters = extra_float_digits
"""
_PROGRAM = "pgbouncer"
# The first message of a client that asks whether there is TLS; without TLS the answer is one letter.
_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


def need_pgbouncer() -> None:
    """Skip the test where there is none. Fails instead where the environment says that this is CI."""
    if program() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs Debian's package pgbouncer")


def program() -> str | None:
    return shutil.which(_PROGRAM, path=os.environ.get("PATH", "") + ":/usr/sbin")


class PgBouncer(Server):
    """A pooler before a server, with at most `size` connections to each of its databases."""

    def __init__(self, upstream: str, size: int = 4) -> None:
        super().__init__()
        self._upstream, self._size = urlsplit(upstream), size

    @property
    def url(self) -> str:
        return self.database_url(self._upstream.path.lstrip("/"))

    def database_url(self, name: str) -> str:
        """The URL of a database of the server, through the pooler."""
        return urlunsplit(("postgresql", f"postgres@127.0.0.1:{self.port}", f"/{name}", "", ""))

    def prepare(self) -> None:
        server = self._upstream
        write_private(
            self.folder / "pgbouncer.ini",
            _CONFIG.format(
                host=server.hostname,
                upstream=server.port,
                user=server.username,
                password=server.password,
                port=self.port,
                size=self._size,
            ),
        )
        if os.geteuid() == 0:  # it refuses to be root
            for path in (self.folder, self.folder / "pgbouncer.ini"):
                shutil.chown(path, "nobody", -1)

    def command(self) -> list[str]:
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        return [str(program()), "-q", *user, "./pgbouncer.ini"]

    def ready(self) -> bool:
        return answers(self.port, _SSL_REQUEST, b"N")
