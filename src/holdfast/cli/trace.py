"""`holdfast trace`: one event id, its whole life."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli.archive import Master
from holdfast.cli.ingest import WalPath, WarehouseUrl
from holdfast.cli.options import ConfigFile, EventId, Json, Urls, examples
from holdfast.cli.output import write_json, write_line, write_table
from holdfast.cli.reconcile import Archive, books_of, settings
from holdfast.model.names import check_name

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.pipeline.trace.steps import Life

OfChannel = Annotated[str | None, typer.Option("--channel", help="Only in this channel. Default: in all.")]
FromSource = Annotated[str | None, typer.Option("--source", help="Only from this source. Default: from any.")]
Scan = Annotated[
    bool,
    typer.Option("--scan", help="Search log and archive even where the warehouse knows the event."),
]


def trace(
    event_id: EventId,
    channel: OfChannel = None,
    source: FromSource = None,
    scan: Scan = False,
    archive: Archive = None,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Say what became of an event: published, attempts, archive, WAL, warehouse, dead letter, requeues.

    Where the warehouse knows the event, everything else is looked up at its place. Where it does not, a Spark
    job searches the log, the archive and the failed records.
    """
    if channel is not None:
        check_name(channel)
    from holdfast.cli.spark import session
    from holdfast.pipeline.trace.job import Question, Tracer

    effective = settings(urls, config, archive, wal, warehouse, channel)
    with wiring.addresses(effective.url) as addresses, ExitStack() as stack:
        started = session(master, name="holdfast trace")
        books = books_of(effective, addresses, archive)
        tracer = Tracer(addresses, books, lambda: stack.enter_context(started))
        lives = tracer.trace(Question(event_id, channel, source, scan))
    if as_json:
        write_json(lives)
        return
    for place, life in enumerate(lives):
        _print(life, first=place == 0)


def _print(life: Life, *, first: bool) -> None:
    if not first:
        write_line("")
    write_line(f"{life.id} from {life.source} in {life.channel}")
    write_table(["AT", "WHAT", "WHERE", "DETAIL"], life.steps)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast trace o-1 --config holdfast.yaml",
        "holdfast trace o-1 --channel orders --scan --config holdfast.yaml --json",
    )
    app.command(epilog=shown)(trace)
