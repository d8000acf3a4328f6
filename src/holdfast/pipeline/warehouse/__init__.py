"""Warehouses: where a channel ends up once, behind one small contract.

    warehouse = open_warehouse("duckdb:///data/warehouse.duckdb", Tables())
    warehouse.load([Load(batch.name, batch.channels, rows)])

Nothing here needs Spark.
"""

from holdfast.pipeline.warehouse.contract import (
    FailedEvent,
    Load,
    LoadOutcome,
    StoredEvent,
    Warehouse,
    open_warehouse,
)
from holdfast.pipeline.warehouse.tables import Column, Table, Tables

__all__ = [
    "Column",
    "FailedEvent",
    "Load",
    "LoadOutcome",
    "StoredEvent",
    "Table",
    "Tables",
    "Warehouse",
    "open_warehouse",
]
