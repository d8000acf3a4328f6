"""Damage: whether an error of DuckDB, Arrow or deltalake is a file's fault, and what to do then.

Errors about a row or a statement repeat what stands in it, which may be anything: only how they begin tells.
"""

from __future__ import annotations

import duckdb

_UNREAD = "Invalid Input Error: reading the stream registered as"
_SIGNS = (
    "Corrupt",
    "Could not read enough bytes",
    "is not a valid DuckDB database file",
    "Parquet magic bytes not found",
    "Couldn't deserialize thrift",
    "No such file or directory",
    "there is no object",
    "Truncated record",
)


def is_unread(error: Exception) -> bool:
    """Whether Arrow failed under DuckDB: a file is gone or damaged, or a store away. No row is at fault."""
    return str(error).startswith(_UNREAD)


def advice(error: Exception) -> str:
    """To be put behind the text of an error that says that a file is damaged or gone; else empty."""
    of_content = isinstance(error, duckdb.DataError | duckdb.ProgrammingError) and not is_unread(error)
    if not of_content and any(sign in str(error) for sign in _SIGNS):
        return (
            "; a file of the warehouse is damaged or gone: restore it, or move the warehouse away and fill a "
            "new one with holdfast warehouse rebuild"
        )
    return ""
