"""`holdfast compact`: many small files of an archive or a warehouse into few, or a day as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli.options import ConfigFile, Json, examples, parse_day
from holdfast.cli.output import say, write_json, write_table
from holdfast.cli.pipeline import Master, WarehouseUrl, check_archive, compaction_of, destination_of
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.redact import mask

if TYPE_CHECKING:  # Arrow takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.upkeep import UpkeepTask

From = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="The archive, instead of the configuration's.")
]
Day = Annotated[
    str | None,
    typer.Option("--day", metavar="YYYY-MM-DD", help="Write this day as Parquet instead; needs --from."),
]


def compact(
    source: From = None,
    warehouse: WarehouseUrl = None,
    day: Day = None,
    master: Master = "local[*]",
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make many small files few, now: objects of an archive's past days, data files of Delta tables.

    The drivers of the archive and the ingest do so by themselves; both may be at work. What is replaced is
    removed after `compaction.keep`. With --day, a day's objects are written as Parquet under compact/, read
    back, and compared row by row; the objects stay.
    """
    if day is not None:
        if source is None:
            raise InvalidInput("--day is about an archive; say which with --from")
        _write_day(source, day, master, as_json=as_json)
        return
    places = _tasks(wiring.configured((), config), source, warehouse)
    done = [(place, *_run_to_end(task)) for place, task in places]
    if as_json:
        write_json(
            [{"place": place, "merged": old, "into": new, "removed": gone} for place, old, new, gone in done]
        )
        return
    write_table(["PLACE", "MERGED", "INTO", "REMOVED"], done)


def _tasks(config: Config, source: str | None, warehouse: str | None) -> Sequence[tuple[str, UpkeepTask]]:
    from holdfast.pipeline.archive.compaction import compactions
    from holdfast.pipeline.warehouse.contract import upkeep_of

    chosen = source is not None or warehouse is not None
    archives = [source] if source else []
    if not chosen:
        archives = [destination_of(each, config) for each in config.archive_streams]
        warehouse = config.ingest.warehouse
    for url in archives:
        check_archive(url)
    kept, files = compaction_of(config.archiver.compaction), compaction_of(config.ingest.compaction)
    found = [(task.url, task) for task in compactions(archives, kept)]
    tables = upkeep_of(warehouse, files.file_size, files.keep) if warehouse else []
    if chosen and warehouse and not tables:
        raise NotFound(f"there is no Delta table in {mask(warehouse)}; a DuckDB file keeps itself in order")
    return [*found, *((f"table {task.name}", task) for task in tables)]


def _run_to_end(task: UpkeepTask) -> tuple[int, int, int]:
    """Until nothing is left to do: files that were merged, into how many, and how many were removed."""
    now = datetime.now(UTC)
    merged = into = 0
    while any(done := task.step(now)):
        merged, into = merged + done.merged, into + done.into
    return merged, into, task.clean(now).removed


def _write_day(source: str, day: str, master: str, *, as_json: bool) -> None:
    wanted = parse_day(day)
    from holdfast.cli.spark import session
    from holdfast.pipeline.compact import compact as write_parquet

    check_archive(source)
    with session(master, name="holdfast compact") as spark:
        done = write_parquet(spark, source, wanted)
    if as_json:
        write_json(done)
        return
    write_table(["FILE", "OBJECTS", "ROWS", "BYTES"], done)
    rows = sum(each.rows for each in done)
    say(f"{rows:,} rows of {wanted} are equal in {len(done)} Parquet files and in the archive")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast compact --config holdfast.yaml",
        "holdfast compact --warehouse delta:///data/tables --json",
        "holdfast compact --from s3://bucket/prefix --day 2026-02-14",
    )
    app.command(epilog=shown)(compact)
