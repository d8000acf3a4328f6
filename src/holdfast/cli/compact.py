"""`holdfast compact`: a day of an archive as Parquet."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from holdfast.cli.archive import Master
from holdfast.cli.options import Json, examples
from holdfast.cli.output import say, write_json, write_table
from holdfast.cli.places import check_archive
from holdfast.cli.replay import From
from holdfast.model.errors import InvalidInput

Day = Annotated[str, typer.Option("--day", metavar="YYYY-MM-DD", help="The day of the events, in UTC.")]


def compact(source: From, day: Day, master: Master = "local[*]", as_json: Json = False) -> None:
    """Write a day's objects as Parquet under compact/, and prove that the rows are equal.

    A file is listed only after it was read back and compared row by row. The objects stay as they are.
    """
    try:
        wanted = date.fromisoformat(day)
    except ValueError:
        raise InvalidInput(f"--day {day!r} is no day; write 2026-02-14") from None
    from holdfast.pipeline.compact import compact as write_parquet
    from holdfast.pipeline.session import session

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
    shown = examples("holdfast compact --from s3://bucket/prefix --day 2026-02-14")
    app.command(epilog=shown)(compact)
