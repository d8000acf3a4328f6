"""Where Spark finds the data source `holdfast` by itself.

Spark looks through the installed top-level modules named `pyspark_*` for a class called `DefaultSource`.
"""

from holdfast.pipeline.source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
