"""Queries run each in a process of its own, with limits on time, memory and result.

DuckDB can be interrupted between two of its steps, and some steps take minutes: only a process can be ended.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec

import orjson

from holdfast.model.errors import HoldfastError, InvalidInput, NotFound, Unavailable

PATIENCE = 10.0
"""How long a query waits until it may open a DuckDB file, in seconds."""
GRACE = 2.0
"""How long after its time a query that cannot be interrupted is killed, in seconds."""
_WAIT = 60.0
"""For a process whose machine has no time for it."""
_ERRORS = {error.__name__: error for error in (InvalidInput, NotFound, Unavailable)}


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may cost."""

    rows: int = 1_000
    bytes: int = 4 << 20
    """Of the result, as JSON."""
    seconds: float = 5.0
    """Half as long as the ingest waits for a DuckDB file that somebody reads."""
    memory: int = 512 << 20


async def run_query(url: str, sql: str, limits: QueryLimits, *, audit: bool) -> bytes:
    """The result as JSON: `columns` with names and types, `rows`, `truncated`, `seconds`.

    Without `audit` a warehouse that has the audit among its events is not opened. Raises `InvalidInput` for
    SQL that is wrong or not allowed, or takes more than its limits; `NotFound` where there is no warehouse;
    `Unavailable` where others have it.
    """
    if find_spec("duckdb") is None:
        raise HoldfastError("DuckDB is not installed: pip install 'holdfast[spark]'")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast.pipeline.query.engine",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-Z must not stop it while it holds the file
    )
    request = {"url": url, "sql": sql, "limits": asdict(limits), "audit": audit}
    try:
        async with asyncio.timeout(_WAIT + PATIENCE + limits.seconds):
            output, _ = await process.communicate(orjson.dumps(request))
    except TimeoutError:
        output = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if output[:1] == b"=":
        return output[1:]
    if output[:1] == b"!":
        kind, _, message = output[1:].decode().partition(" ")
        raise _ERRORS[kind](message)
    if process.returncode in (-signal.SIGALRM, -signal.SIGKILL):
        raise too_slow(limits)
    raise too_large(limits)


def too_slow(limits: QueryLimits) -> InvalidInput:
    """For a query that takes too long."""
    return InvalidInput(f"the query takes over {limits.seconds:g} s; ask for less, such as one day")


def too_large(limits: QueryLimits) -> InvalidInput:
    """For a query that needs too much memory."""
    return InvalidInput(f"the query needs over {limits.memory >> 20} MiB; ask for less, such as one day")
