"""`holdfast reconcile`: published = archived = ingested + failed, or which events say otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli.archive import Master
from holdfast.cli.ingest import WalPath, WarehouseUrl, plan_of
from holdfast.cli.options import Channel, ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.cli.places import check_archive
from holdfast.cli.policies import destination_of
from holdfast.cli.selected import channels_of
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.names import check_name, selects

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.reconcile.bounds import Books
    from holdfast.pipeline.reconcile.report import Report

Day = Annotated[
    str | None, typer.Option("--day", metavar="YYYY-MM-DD", help="Only events of this day, in UTC.")
]
Archive = Annotated[
    str | None, typer.Option("--archive", metavar="URL", help="The archive, instead of the file's.")
]
Limit = Annotated[int, typer.Option(min=0, help="Name at most so many events; all are counted.")]


def reconcile(
    channel: Channel,
    day: Day = None,
    archive: Archive = None,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    limit: Limit = 100,
    master: Master = "local[*]",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show that published = archived = ingested + failed, event by event. Ends with 1 on a difference.

    What retention has trimmed counts as published where the archive's manifests prove it. Named are events
    that are missing, surplus or doubled, and apart from them those that are only waiting for their turn.
    """
    check_name(channel)
    wanted = parse_day(day)
    effective = settings(urls, config, archive, wal, warehouse, channel)
    from holdfast.cli.spark import session
    from holdfast.pipeline.reconcile.job import reconcile as compare

    with wiring.addresses(effective.url) as stores:
        if channel not in asyncio.run(channels_of(effective, stores)):
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
        books = books_of(effective, stores, archive)(channel)
        with session(master, name="holdfast reconcile") as spark:
            report = compare(spark, books, wanted, limit)
    print_reports([report], as_json)


def settings(
    urls: Urls,
    config: ConfigFile,
    archive: str | None,
    wal: str | None,
    warehouse: str | None,
    channel: str | None,
) -> Config:
    """The configuration, with what the flags say. A warehouse or a WAL that is named is this channel's."""
    from holdfast.config.load import load

    ingested = (warehouse or wal) and [channel or ">"]
    flags = {
        "url": flat(urls),
        "ingest.channels": ingested or None,
        "ingest.wal.path": wal,
        "ingest.warehouse": warehouse,
    }
    found = load(config, flags=flags).config
    if not (archive or found.archive_streams or found.ingest.channels):
        raise InvalidInput(
            "nothing to compare with: give --archive or --warehouse, or a --config with archiver: or ingest:"
        )
    return found


def books_of(config: Config, urls: list[str], archive: str | None) -> Callable[[str], Books]:
    """From a channel to where its books are kept; `NotFound` where an archive that is named is none."""
    if archive is not None:
        check_archive(archive)
    from holdfast.pipeline.reconcile.bounds import Books

    def books(channel: str) -> Books:
        streams = [each for each in config.archive_streams if selects(each.stream, channel)]
        destination = archive or (destination_of(streams[0], config) if streams else None)
        ingested = any(selects(pattern, channel) for pattern in config.ingest.channels)
        plan = plan_of(config) if ingested else None
        return Books(channel, tuple(urls), destination, plan=plan, namespace=config.namespace)

    return books


def parse_day(text: str | None) -> date | None:
    """A day as people write it."""
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--day {text!r} is no day; write 2026-02-14") from None


def print_reports(reports: list[Report], as_json: bool) -> None:
    """All of them; ends the program with 1 where one is not equal."""
    if as_json:
        write_json([each.to_json() for each in reports] if len(reports) != 1 else reports[0].to_json())
    else:
        for report in reports:
            _print(report)
    if not all(report.equal for report in reports):
        raise typer.Exit(1)


def _print(report: Report) -> None:
    counts = ("published", "archived", "ingested", "failed", "repeats", "from_manifests", "not_compared")
    shown = {name.replace("_", " "): getattr(report, name) for name in counts}
    write_pairs({"channel": report.channel, "day": report.day and report.day.isoformat()} | shown)
    if report.tallies:
        write_table(["WHERE", "WHAT", "EVENTS"], report.tallies)
    if report.differences:
        rows = [(d.where, d.kind, d.id, d.source, d.partition, d.position) for d in report.differences]
        write_table(["WHERE", "WHAT", "ID", "SOURCE", "PARTITION", "POSITION"], rows)
    say(f"{report.channel}: {_verdict(report)}")


def _verdict(report: Report) -> str:
    if report.equal:
        parts = ["published"]
        parts += ["archived"] if report.archived is not None else []
        parts += ["ingested + failed"] if report.ingested is not None else []
        return f"equal: {' = '.join(parts)}; lost 0, duplicates 0"
    lost = sum(each.events for each in report.tallies if each.kind != "waiting")
    if not lost:
        return "not equal yet: some events are still on their way"
    return "NOT EQUAL"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast reconcile orders --config holdfast.yaml",
        "holdfast reconcile gbe.events.audit.change --config holdfast.yaml --day 2026-02-14 --json",
        "holdfast reconcile orders --archive s3://bucket/prefix --warehouse duckdb:///data/warehouse.duckdb",
    )
    app.command(epilog=shown)(reconcile)
