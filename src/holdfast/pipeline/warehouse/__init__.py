"""Warehouses: where a channel ends up once, behind one small contract.

    warehouse = open_warehouse("duckdb:///data/warehouse.duckdb", Tables())
    warehouse.load(batch.name, batch.key.channel, rows)

Nothing here needs Spark.
"""

from holdfast.pipeline.warehouse.address import open_warehouse
from holdfast.pipeline.warehouse.contract import FailedEvent, Outcome, Standing, Warehouse
from holdfast.pipeline.warehouse.tables import Column, Table, Tables

__all__ = ["Column", "FailedEvent", "Outcome", "Standing", "Table", "Tables", "Warehouse", "open_warehouse"]
