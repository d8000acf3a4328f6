"""The files of Delta tables: where each table is, and that what was committed is durable."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

_LOG = "_delta_log"


class DeltaFiles:
    """Tables under a folder, or under `s3://bucket/prefix` with the environment's `AWS_…`."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._is_folder = "://" not in root

    def find(self, name: str) -> DeltaTable | None:
        """A table at its latest version."""
        try:
            return DeltaTable(self._uri(name), storage_options=self._options())
        except TableNotFoundError:
            return None

    def open(self, name: str, schema: pa.Schema) -> DeltaTable:
        """A table at its latest version, made if it is not there."""
        found = self.find(name)
        if found is not None:
            return found
        if self._is_folder:
            Path(self._root).mkdir(parents=True, exist_ok=True)
        made = DeltaTable.create(self._uri(name), schema, mode="ignore", storage_options=self._options())
        self.settle(name, -1)
        return made

    def settle(self, name: str, after: int) -> None:
        """Have commits after a version survive a power failure. On S3 they do; deltalake syncs nothing."""
        if not self._is_folder:
            return
        folder = Path(self._uri(name))
        commit = folder / _LOG / f"{after + 1:020}.json"
        while commit.exists():
            for added in _added(commit):
                _sync(folder / added)
            _sync(commit)
            after += 1
            commit = folder / _LOG / f"{after + 1:020}.json"
        for each in (folder / _LOG, folder, folder.parent):
            _sync(each)

    def _uri(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _options(self) -> dict[str, str] | None:
        if self._is_folder:
            return None
        options = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        plain = options.get("AWS_ENDPOINT_URL", "").startswith("http://")
        # A commit is a put that fails where the version exists: that is what keeps two writers apart.
        return options | {"AWS_CONDITIONAL_PUT": "etag"} | ({"AWS_ALLOW_HTTP": "true"} if plain else {})


def _added(commit: Path) -> list[str]:
    actions = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
    return [action["add"]["path"] for action in actions if "add" in action]


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # compacted or vacuumed by somebody since
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
