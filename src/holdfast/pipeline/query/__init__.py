"""Queries: SQL that people write, on the warehouse, which it can only read.

    result = await run_query(url, "SELECT count(*) FROM all_events", QueryLimits(), audit=False)

Nothing here needs Spark.
"""

from holdfast.pipeline.query.process import QueryLimits, run_query

__all__ = ["QueryLimits", "run_query"]
