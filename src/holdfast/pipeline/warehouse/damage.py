"""Damage: what to do where an error of DuckDB, Arrow or deltalake says that a file is damaged or gone."""

UNREAD = "reading the stream registered as"
"""In an error of DuckDB's that is Arrow's: a file is gone or damaged, or a store away. No row is at fault."""
_SIGNS = (
    "Corrupt database file",
    "is not a valid DuckDB database file",
    "Parquet magic bytes not found",
    "Couldn't deserialize thrift",
    "No such file or directory",
    "there is no object",
    "Truncated record",
)


def advice(error: Exception) -> str:
    """To be put behind the error's text; empty where it says nothing of that kind."""
    if any(sign in str(error) for sign in _SIGNS):
        return (
            "; a file of the warehouse is damaged or gone: restore it, or move the warehouse away and fill a "
            "new one with holdfast warehouse rebuild"
        )
    return ""
