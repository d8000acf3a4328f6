"""Named queries from the .sql files in `sql/`."""

from __future__ import annotations

from holdfast.model.sql_files import load_queries

QUERIES = load_queries(__package__, "sql")
