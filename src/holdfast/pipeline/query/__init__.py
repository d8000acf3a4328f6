"""Queries: SQL that people write, on the warehouse, which it can only read.

    answer = await ask("duckdb:///data/warehouse.duckdb", "SELECT count(*) FROM all_events")

Nothing here needs Spark.
"""

from holdfast.pipeline.query.ask import Limits, ask

__all__ = ["Limits", "ask"]
