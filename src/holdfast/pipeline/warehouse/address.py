"""From URLs to warehouses: the one place that knows which kinds there are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast.config.urls import mask
from holdfast.model.errors import InvalidInput
from holdfast.pipeline.warehouse.contract import Warehouse
from holdfast.pipeline.warehouse.tables import Tables

if TYPE_CHECKING:
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep
    from holdfast.pipeline.warehouse.spread import Spread


def upkeep_of(url: str, file_size: int, keep: timedelta) -> list[TableUpkeep]:
    """The tables of a warehouse, as they are now. A DuckDB file has none: it keeps itself in order."""
    kind, root = place_of(url)
    if kind != "delta":
        return []
    from holdfast.pipeline.stores import open_store
    from holdfast.pipeline.warehouse.delta_files import DeltaFiles
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep

    files, store = DeltaFiles(root), open_store(root)
    return [TableUpkeep(files, store, name, file_size, keep) for name in files.names()]


class Place(NamedTuple):
    """Where a warehouse is: a DuckDB file, or the root of Delta tables (a folder, or `s3://bucket/prefix`)."""

    kind: Literal["duckdb", "delta"]
    path: str


def place_of(url: str) -> Place:
    """`duckdb:///absolute/path.duckdb` or `duckdb://relative/path.duckdb`; `delta:///folder` likewise, or
    `delta+s3://bucket/prefix`."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    match parts.scheme:
        case "duckdb" if path:
            return Place("duckdb", path)
        case "delta" if path:
            return Place("delta", str(Path(path).expanduser().resolve()))
        case "delta+s3" if parts.netloc:
            return Place("delta", f"s3://{path.rstrip('/')}")
    raise InvalidInput(
        f"no warehouse for the URL {mask(url)!r}; write duckdb:///path/to/warehouse.duckdb, "
        "delta:///path/to/folder or delta+s3://bucket/prefix"
    )


def open_warehouse(url: str, tables: Tables, spread: Spread | None = None) -> Warehouse:
    """The warehouse of a URL, as `place_of` reads it. With `spread`, large loads into Delta are done
    elsewhere, in parts."""
    kind, path = place_of(url)
    if kind == "duckdb":
        from holdfast.pipeline.warehouse.duck import DuckWarehouse

        return DuckWarehouse(Path(path), tables)
    from holdfast.pipeline.warehouse.delta import DeltaWarehouse
    from holdfast.pipeline.warehouse.spread import in_place

    return DeltaWarehouse(path, tables, spread or in_place)
