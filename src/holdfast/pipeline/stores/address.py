"""From URLs to stores: the one place that knows which kinds there are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.config.urls import check_url
from holdfast.model.errors import InvalidInput
from holdfast.pipeline.stores.contract import ObjectStore


def open_store(url: str, environment: Mapping[str, str] | None = None) -> ObjectStore:
    """A folder (`file:///data` or a path), `s3://bucket/prefix`, or `postgresql://…/database?table=name`.

    `environment` adds to this process's own: an executor is given the driver's `AWS_*` so.
    """
    folder = folder_of(url)
    if folder is not None:
        from holdfast.pipeline.stores.folder import FolderStore

        return FolderStore(folder)
    parts = urlsplit(url)
    match parts.scheme:
        case "s3" if parts.netloc and "@" not in parts.netloc:
            from holdfast.pipeline.stores.s3 import S3Store

            return S3Store(parts.netloc, parts.path.strip("/"), {**os.environ, **(environment or {})})
        case "postgresql" | "postgres":
            from holdfast.pipeline.stores.table import TableStore

            return TableStore(check_url(url))
    raise InvalidInput(
        f"no object store for a URL such as {parts.scheme}://…; write a path, file:///path, "
        "s3://bucket/prefix (with the key in AWS_ACCESS_KEY_ID) or postgresql://user@host/database?table=archive"
    )


def folder_of(url: str) -> Path | None:
    """The folder that a URL means; None where it means something else."""
    if "://" not in url:
        return Path(url).expanduser()
    parts = urlsplit(url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return Path(unquote(parts.path)).expanduser() if local else None


def cloud_environment() -> dict[str, str]:
    """What this process knows of S3, for processes elsewhere that write for it."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
