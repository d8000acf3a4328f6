"""From URLs to warehouses: the one place that knows which kinds there are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from holdfast.config.urls import mask
from holdfast.model.errors import InvalidInput
from holdfast.pipeline.warehouse.contract import Warehouse
from holdfast.pipeline.warehouse.tables import Tables

if TYPE_CHECKING:
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep


def upkeep_of(url: str, file_size: int, keep: timedelta) -> list[TableUpkeep]:
    """The tables of a warehouse that need upkeep; none where it keeps itself in order."""
    root = _delta_root(url)
    if root is None:
        return []
    from holdfast.pipeline.stores import open_store
    from holdfast.pipeline.warehouse.delta_files import DeltaFiles
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep

    files, store = DeltaFiles(root), open_store(root)
    return [TableUpkeep(files, store, name, file_size, keep) for name in files.names()]


def _delta_root(url: str) -> str | None:
    """Where the tables of a Delta warehouse are; None for another kind."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    match parts.scheme:
        case "delta" if path:
            return str(Path(path).expanduser().resolve())
        case "delta+s3" if parts.netloc:
            return f"s3://{path.rstrip('/')}"
    return None


def open_warehouse(url: str, tables: Tables) -> Warehouse:
    """`duckdb:///absolute/path.duckdb` or `duckdb://relative/path.duckdb`; `delta:///folder` likewise, or
    `delta+s3://bucket/prefix`."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    if parts.scheme == "duckdb" and path:
        from holdfast.pipeline.warehouse.duck import DuckWarehouse

        return DuckWarehouse(Path(path), tables)
    root = _delta_root(url)
    if root is not None:
        from holdfast.pipeline.warehouse.delta import DeltaWarehouse

        return DeltaWarehouse(root, tables)
    raise InvalidInput(
        f"no warehouse for the URL {mask(url)!r}; write duckdb:///path/to/warehouse.duckdb, "
        "delta:///path/to/folder or delta+s3://bucket/prefix"
    )
