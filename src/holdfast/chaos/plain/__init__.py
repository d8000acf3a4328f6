"""The pipeline without Spark: the very steps of its jobs in one plain process, which is cheap to kill."""
