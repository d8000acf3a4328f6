"""`holdfast warehouse`: fill a lost one again, put a damaged one right."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli.archive import Master
from holdfast.cli.ingest import WalPath, WarehouseUrl, plan_of
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import say, write_json
from holdfast.cli.places import check_warehouse
from holdfast.cli.reconcile import Archive, books_of, print_reports, settings
from holdfast.cli.selected import channels_of
from holdfast.model.errors import NotFound
from holdfast.model.names import check_name, selects

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.rebuild.repair import Repaired

app = typer.Typer(help="The warehouse: fill a lost one again, put a damaged one right.", no_args_is_help=True)

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
    from holdfast.cli.spark import session
    from holdfast.pipeline.rebuild.job import rebuild as fill

    with wiring.addresses(effective.url) as addresses:
        names = _ingested(effective, addresses, channels)
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


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be put right, and from where; change nothing.")
]


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
    effective = settings(urls, config, archive, wal, warehouse, None)
    plan = plan_of(effective)
    from holdfast.cli.spark import session
    from holdfast.pipeline.rebuild.repair import repair as mend

    with wiring.addresses(effective.url) as addresses:
        names = _ingested(effective, addresses, channels)
        books = books_of(effective, addresses, archive)
        check_warehouse(effective.ingest.warehouse)
        with session(master, name="holdfast warehouse repair") as spark:
            done = mend(spark, addresses, plan, [books(name) for name in names], say, dry_run=dry_run)
    _summarize(done, dry_run)
    if as_json:
        write_json({"dry_run": dry_run} | done.to_json())
        raise typer.Exit(0 if done.equal else 1)
    print_reports(done.reports, as_json=False)


def _summarize(done: Repaired, dry_run: bool) -> None:
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
    there = asyncio.run(channels_of(config, urls))
    for name in named or ():
        if check_name(name) not in there:
            raise NotFound(f"there is no channel {name!r}; 'holdfast channels list' shows all")
    chosen = (each for each in there if any(selects(pattern, each) for pattern in config.ingest.channels))
    return named or sorted(chosen)
