"""Cold storage of a siege: a folder, or a real S3 behind a way that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.chaos.s3 import FaultyWay, faulty_way
from holdfast.embedded import S3

if TYPE_CHECKING:  # the pipeline may not be installed
    from holdfast.pipeline.stores import ObjectStore

_BUCKET = "chaos"


@dataclass(frozen=True, slots=True)
class Cold:
    """Where an archiver writes, and where the judge reads what it wrote."""

    url: str
    environment: dict[str, str] = field(default_factory=dict)
    """For the archiver's process."""
    way: FaultyWay | None = None
    direct: str | None = None
    """The endpoint without the way, for the judge."""

    def opened(self) -> ObjectStore:
        """For the judge, who must not meet the faults."""
        from holdfast.pipeline.stores import open_store
        from holdfast.pipeline.stores.s3 import S3Store

        if self.direct is None:
            return open_store(self.url)
        return S3Store(_BUCKET, "", self.environment | {"AWS_ENDPOINT_URL": self.direct})


@contextmanager
def cold_storage(folder: Path, *, s3: bool) -> Iterator[Cold]:
    """In a folder, or on an S3 of its own."""
    if not s3:
        yield Cold(str(folder))
        return
    with ExitStack() as stack:
        server = stack.enter_context(S3())
        way = stack.enter_context(faulty_way(server.port))
        environment = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_REGION": server.region,
            "AWS_ENDPOINT_URL": way.endpoint,
        }
        cold = Cold(f"s3://{_BUCKET}", environment, way, server.endpoint)
        cold.opened().put("founded", b"")  # a bucket comes into being with its first object
        yield cold
