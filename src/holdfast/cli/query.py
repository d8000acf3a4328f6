"""`holdfast query`: SQL on the warehouse."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer

from holdfast.cli.ingest import WarehouseUrl
from holdfast.cli.options import ConfigFile, Json, examples
from holdfast.cli.output import say, write_json, write_result
from holdfast.config.values import parse_size
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput

Sql = Annotated[
    str | None, typer.Argument(metavar="SQL", help="The query. Default: --file, or the standard input.")
]
File = Annotated[Path | None, typer.Option("--file", help="A file with the query; - is the standard input.")]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="Print at most so many rows.")]
Timeout = Annotated[str, typer.Option(help="The longest time that the query may take.")]
Schemas = Annotated[
    bool, typer.Option("--schemas", help="Instead of a query: every version of each channel's schema.")
]
SCHEMAS = """
SELECT channel, version, since, cause, fields, left_out FROM holdfast_schemas ORDER BY channel, version"""
Memory = Annotated[str, typer.Option(help="The most memory that the query may take.")]


def query(
    sql: Sql = None,
    file: File = None,
    warehouse: WarehouseUrl = None,
    limit: Limit = 1_000,
    timeout: Timeout = "5s",
    memory: Memory = "512MiB",
    schemas: Schemas = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Ask the warehouse: one SELECT in DuckDB's dialect, whether it is a DuckDB file or Delta tables.

    The warehouse is only read, and the query reaches nothing else: no files, no extensions, no network.
    Each channel is a view with its fields as typed columns, such as `orders`; `all_events` has the events of
    all channels, `failed_events` what the ingest gave up on; `SHOW TABLES` and `DESCRIBE orders` tell more.
    While a query runs on a DuckDB file, the ingest cannot load into it: with a long --timeout it tries again
    later, and what it has to load waits in the WAL.
    """
    from holdfast.config.load import load
    from holdfast.pipeline.query import Limits, ask

    seconds = parse_duration(timeout, what="--timeout").total_seconds()
    if not seconds:
        raise InvalidInput("--timeout 0s leaves no time; write 5s")
    limits = Limits(rows=limit, bytes=256 << 20, seconds=seconds, memory=parse_size(memory))
    url = load(config, flags={"ingest.warehouse": warehouse}).config.ingest.warehouse
    text = SCHEMAS if schemas else _sql(sql, file)
    answer = orjson.loads(asyncio.run(ask(url, text, limits, audit=True)))
    if as_json:
        write_json(answer)
    else:
        write_result([(each["name"], each["type"]) for each in answer["columns"]], answer["rows"])
    if answer["truncated"]:
        say(f"there are more rows than these {len(answer['rows']):,}; --limit prints more")


def _sql(sql: str | None, file: Path | None) -> str:
    if sql is not None and file is not None:
        raise InvalidInput("give the query or --file, not both")
    if sql is not None and sql != "-":
        return sql
    if file is None and sql is None and sys.stdin.isatty():
        raise InvalidInput('no query; write holdfast query "SELECT count(*) FROM all_events"')
    try:
        text = sys.stdin.read() if file is None or str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the query cannot be read: {error}") from None
    return text


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        'holdfast query "SELECT channel, count(*) FROM all_events GROUP BY ALL"',
        "holdfast query --schemas --config holdfast.yaml",
        "holdfast query --file report.sql --config holdfast.yaml --timeout 1m --json",
        'echo "SHOW TABLES" | holdfast query --warehouse delta+s3://bucket/tables',
    )
    app.command(epilog=shown)(query)
