"""Damage: whether an error of DuckDB, Arrow or deltalake is a file's fault, and what to do then.

Errors about a row or a statement repeat what stands in it, which may be anything: only how they begin tells.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import orjson

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
_RESTORE = "restore it, or move the warehouse away and fill a new one with holdfast warehouse rebuild"


def is_unread(error: Exception) -> bool:
    """Whether Arrow failed under DuckDB: a file is gone or damaged, or a store away. No row is at fault."""
    return str(error).startswith(_UNREAD)


def advice(error: Exception) -> str:
    """To be put behind the text of an error that says that a file is damaged or gone; else empty."""
    of_content = isinstance(error, duckdb.DataError | duckdb.ProgrammingError) and not is_unread(error)
    if not of_content and any(sign in str(error) for sign in _SIGNS):
        return f"; a file of the warehouse is damaged or gone: {_RESTORE}"
    return ""


def of_log(folder: Path) -> str | None:
    """Which commit in the log of a Delta table cannot be read, and what to do; None where all can be.

    Only the newest may go. A batch is confirmed when its commit is synced, so a power failure tears none
    that a confirmed batch needs.
    """
    commits = sorted(folder.glob(f"{'[0-9]' * 20}.json"))
    damaged = [each for each in commits if _is_damaged(each)]
    if not damaged:
        return None
    if damaged[-1] != commits[-1]:
        return f"{damaged[-1]} is damaged: {_RESTORE}"
    return (
        f"{damaged[-1]} is torn, as by a power failure: remove this file. Its batch is still pending and is "
        "loaded again; holdfast reconcile shows whether all is there"
    )


def _is_damaged(commit: Path) -> bool:
    try:
        actions = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
    except orjson.JSONDecodeError:
        return True
    return int(commit.stem) == 0 and not any("metaData" in each for each in actions)
