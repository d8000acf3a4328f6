"""`holdfast warehouse` and `holdfast query`: fill a lost one, put a damaged one right, ask it in SQL."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from holdfast import wiring
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import say, write_json, write_result
from holdfast.cli.pipeline import (
    Archive,
    Master,
    WalPath,
    WarehouseUrl,
    check_warehouse,
    inputs_of,
    pipeline_config,
    plan_of,
)
from holdfast.cli.reconcile import print_reports
from holdfast.cli.session import channel_names
from holdfast.config.values import parse_size
from holdfast.model.duration import parse_duration
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.names import check_name, selects

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.repair import RepairResult

app = typer.Typer(help="The warehouse: fill a lost one again, put a damaged one right.", no_args_is_help=True)
Channels = Annotated[
    list[str] | None,
    typer.Option("--channel", metavar="CHANNEL", help="Only this one; may be repeated. Default: all."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be put right, and from where; change nothing.")
]
Sql = Annotated[
    str | None, typer.Argument(metavar="SQL", help="The query. Default: --file, or the standard input.")
]
File = Annotated[Path | None, typer.Option("--file", help="A file with the query; - is the standard input.")]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="Print at most so many rows.")]
Timeout = Annotated[str, typer.Option(help="The longest time that the query may take.")]
Memory = Annotated[str, typer.Option(help="The most memory that the query may take.")]
Schemas = Annotated[
    bool, typer.Option("--schemas", help="Instead of a query: every version of each channel's schema.")
]
SCHEMAS = """
SELECT channel, version, since, cause, fields, left_out FROM holdfast_schemas ORDER BY channel, version"""


@app.command(epilog=examples("holdfast warehouse rebuild --config holdfast.yaml"))
def rebuild(
    channels: Channels = None,
    archive: Archive = None,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Fill an empty warehouse from the WAL and the archive, then reconcile. Ends with 1 on a difference.

    It takes the ingest's turn, and ends with 1 where an ingest is at work. Whatever is there already stays
    and is not loaded again: it can be cut short and repeated.
    """
    effective = pipeline_config(urls, config, archive, wal, warehouse, None)
    plan = plan_of(effective)
    from holdfast.cli.spark import session
    from holdfast.pipeline.rebuild import rebuild as fill

    with wiring.addresses(effective.url) as addresses:
        names = _ingested(effective, addresses, channels)
        inputs = inputs_of(effective, addresses, archive)
        with session(master, name="holdfast warehouse rebuild") as spark:
            done = fill(spark, addresses, plan, [inputs(name) for name in names], say)
    say(f"{done.batches:,} batches from the WAL, {done.events:,} events from the archive")
    if as_json:
        write_json(
            {
                "equal": done.equal,
                "batches": done.batches,
                "events": done.events,
                "reports": list(done.reports),
            }
        )
        raise typer.Exit(0 if done.equal else 1)
    print_reports(list(done.reports), as_json=False)


@app.command(
    epilog=examples(
        "holdfast warehouse repair --config holdfast.yaml --dry-run",
        "holdfast warehouse repair --config holdfast.yaml --channel orders --json",
    )
)
def repair(
    channels: Channels = None,
    dry_run: DryRun = False,
    archive: Archive = None,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Put right what reconcile names in the warehouse. Ends with 1 where a difference is left.

    Rows that are missing or changed come back from the WAL, the log or the archive, rows that are doubled
    stand once, rows that were never published go; each batch in one transaction. It takes the ingest's turn,
    and ends with 1 where an ingest is at work. It can be cut short and repeated.
    """
    effective = pipeline_config(urls, config, archive, wal, warehouse, None)
    plan = plan_of(effective)
    from holdfast.cli.spark import session
    from holdfast.pipeline.repair import repair as mend

    with wiring.addresses(effective.url) as addresses:
        names = _ingested(effective, addresses, channels)
        inputs = inputs_of(effective, addresses, archive)
        check_warehouse(effective.ingest.warehouse)
        with session(master, name="holdfast warehouse repair") as spark:
            done = mend(spark, addresses, plan, [inputs(name) for name in names], say, dry_run=dry_run)
    _summarize(done, dry_run)
    if as_json:
        write_json({"dry_run": dry_run} | done.to_json())
        raise typer.Exit(0 if done.equal else 1)
    print_reports(done.reports, as_json=False)


def _summarize(done: RepairResult, dry_run: bool) -> None:
    sources = ", ".join(f"{rows:,} from the {place}" for place, rows in done.restored.items()) or "none"
    would = "would be " if dry_run else ""
    say(f"{done.positions:,} positions {would}put right; rows {would}put in: {sources}")
    if done.lost:
        say(
            f"{done.lost:,} events cannot be restored: the WAL, the log and the archive do not have them, "
            "or not whole"
        )
    for position, why in done.refused.items():
        say(f"the event at {position} is not taken: {why}")


def _ingested(config: Config, urls: list[str], named: list[str] | None) -> list[str]:
    """The channels that are meant: those that are named, or all that are ingested. `NotFound` for a name that
    no store has."""
    there = asyncio.run(channel_names(config, urls))
    for name in named or ():
        if check_name(name) not in there:
            raise NotFound(f"there is no channel {name!r}; 'holdfast channels list' shows all")
    chosen = (each for each in there if any(selects(pattern, each) for pattern in config.ingest.channels))
    return named or sorted(chosen)


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
    from holdfast.pipeline.query import QueryLimits, run_query

    seconds = parse_duration(timeout, what="--timeout").total_seconds()
    if not seconds:
        raise InvalidInput("--timeout 0s leaves no time; write 5s")
    limits = QueryLimits(rows=limit, bytes=256 << 20, seconds=seconds, memory=parse_size(memory))
    url = load(config, flags={"ingest.warehouse": warehouse}).config.ingest.warehouse
    text = SCHEMAS if schemas else _sql(sql, file)
    answer = orjson.loads(asyncio.run(run_query(url, text, limits, audit=True)))
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
