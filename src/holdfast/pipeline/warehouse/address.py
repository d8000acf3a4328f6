"""From URLs to warehouses: the one place that knows which kinds there are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.config.urls import mask
from holdfast.model.errors import InvalidInput
from holdfast.pipeline.warehouse.contract import Warehouse
from holdfast.pipeline.warehouse.tables import Tables


def open_warehouse(url: str, tables: Tables) -> Warehouse:
    """`duckdb:///absolute/path.duckdb` or `duckdb://relative/path.duckdb`; `delta:///folder` likewise, or
    `delta+s3://bucket/prefix`."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    match parts.scheme:
        case "duckdb" if path:
            from holdfast.pipeline.warehouse.duck import DuckWarehouse

            return DuckWarehouse(Path(path), tables)
        case "delta" if path:
            from holdfast.pipeline.warehouse.delta import DeltaWarehouse

            return DeltaWarehouse(str(Path(path).expanduser().resolve()), tables)
        case "delta+s3" if parts.netloc:
            from holdfast.pipeline.warehouse.delta import DeltaWarehouse

            return DeltaWarehouse(f"s3://{path.rstrip('/')}", tables)
    raise InvalidInput(
        f"no warehouse for the URL {mask(url)!r}; write duckdb:///path/to/warehouse.duckdb, "
        "delta:///path/to/folder or delta+s3://bucket/prefix"
    )
