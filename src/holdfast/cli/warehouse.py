"""`holdfast warehouse`: fill a lost one again."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast import wiring
from holdfast.cli.archive import Master
from holdfast.cli.ingest import WalPath, WarehouseUrl, plan_of
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import say, write_json
from holdfast.cli.reconcile import Archive, books_of, channels_of, print_reports, settings
from holdfast.model.names import selects

app = typer.Typer(help="The warehouse: fill a lost one again.", no_args_is_help=True)

Channels = Annotated[
    list[str] | None,
    typer.Option("--channel", metavar="CHANNEL", help="Only this one; may be repeated. Default: all."),
]


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
    effective = settings(urls, config, archive, wal, warehouse, None)
    plan = plan_of(effective)
    from holdfast.pipeline.rebuild.job import rebuild as fill
    from holdfast.pipeline.session import session

    with wiring.addresses(effective.url) as addresses:
        names = channels or [
            channel
            for channel in sorted(asyncio.run(channels_of(effective, addresses)))
            if any(selects(pattern, channel) for pattern in effective.ingest.channels)
        ]
        books = books_of(effective, addresses, archive)
        with session(master, name="holdfast warehouse rebuild") as spark:
            done = fill(spark, addresses, plan, [books(name) for name in names], say)
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
