"""`holdfast reconcile` and `holdfast trace`: published = archived = ingested + failed; one event's life."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli.options import Channel, ConfigFile, EventId, Json, Urls, examples, parse_day
from holdfast.cli.output import say, write_json, write_line, write_pairs, write_table
from holdfast.cli.pipeline import Archive, Master, WalPath, WarehouseUrl, inputs_of, pipeline_config
from holdfast.cli.session import channel_names
from holdfast.model.errors import NotFound
from holdfast.model.names import check_name

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.pipeline.reconcile.report import ReconcileReport
    from holdfast.pipeline.trace import EventTrace

Day = Annotated[
    str | None, typer.Option("--day", metavar="YYYY-MM-DD", help="Only events of this day, in UTC.")
]
Limit = Annotated[int, typer.Option(min=0, help="Name at most so many events; all are counted.")]
OfChannel = Annotated[str | None, typer.Option("--channel", help="Only in this channel. Default: in all.")]
FromSource = Annotated[str | None, typer.Option("--source", help="Only from this source. Default: from any.")]
Scan = Annotated[
    bool,
    typer.Option("--scan", help="Search log and archive even where the warehouse knows the event."),
]


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
    wanted = None if day is None else parse_day(day)
    effective = pipeline_config(urls, config, archive, wal, warehouse, channel)
    from holdfast.cli.spark import session
    from holdfast.pipeline.reconcile.job import reconcile as compare

    with wiring.addresses(effective.url) as stores:
        if channel not in asyncio.run(channel_names(effective, stores)):
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
        inputs = inputs_of(effective, stores, archive)(channel)
        with session(master, name="holdfast reconcile") as spark:
            report = compare(spark, inputs, wanted, limit)
    print_reports([report], as_json)


def print_reports(reports: list[ReconcileReport], as_json: bool) -> None:
    """All of them; ends the program with 1 where one is not equal."""
    if as_json:
        write_json([each.to_json() for each in reports] if len(reports) != 1 else reports[0].to_json())
    else:
        for report in reports:
            _print_report(report)
    if not all(report.equal for report in reports):
        raise typer.Exit(1)


def _print_report(report: ReconcileReport) -> None:
    counts = ("published", "archived", "ingested", "failed", "repeats", "from_manifests", "not_compared")
    shown = {name.replace("_", " "): getattr(report, name) for name in counts}
    write_pairs({"channel": report.channel, "day": report.day and report.day.isoformat()} | shown)
    if report.tallies:
        write_table(["WHERE", "WHAT", "EVENTS"], report.tallies)
    if report.differences:
        rows = [(d.where, d.kind, d.id, d.source, d.partition, d.position) for d in report.differences]
        write_table(["WHERE", "WHAT", "ID", "SOURCE", "PARTITION", "POSITION"], rows)
    say(f"{report.channel}: {_conclusion(report)}")


def _conclusion(report: ReconcileReport) -> str:
    if report.equal:
        parts = ["published"]
        parts += ["archived"] if report.archived is not None else []
        parts += ["ingested + failed"] if report.ingested is not None else []
        return f"equal: {' = '.join(parts)}; lost 0, duplicates 0"
    lost = sum(each.events for each in report.tallies if each.kind != "waiting")
    if not lost:
        return "not equal yet: some events are still on their way"
    return "NOT EQUAL"


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
    from holdfast.pipeline.trace import TraceQuery, Tracer

    effective = pipeline_config(urls, config, archive, wal, warehouse, channel)
    with wiring.addresses(effective.url) as addresses, ExitStack() as stack:
        started = session(master, name="holdfast trace")
        inputs = inputs_of(effective, addresses, archive)
        tracer = Tracer(addresses, inputs, lambda: stack.enter_context(started))
        found = tracer.trace(TraceQuery(event_id, channel, source, scan))
    if as_json:
        write_json(found)
        return
    for place, each in enumerate(found):
        _print_trace(each, first=place == 0)


def _print_trace(trace: EventTrace, *, first: bool) -> None:
    if not first:
        write_line("")
    write_line(f"{trace.id} from {trace.source} in {trace.channel}")
    write_table(["AT", "WHAT", "WHERE", "DETAIL"], trace.steps)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    shown = examples(
        "holdfast reconcile orders --config holdfast.yaml",
        "holdfast reconcile gbe.events.audit.change --config holdfast.yaml --day 2026-02-14 --json",
        "holdfast reconcile orders --archive s3://bucket/prefix --warehouse duckdb:///data/warehouse.duckdb",
    )
    app.command(epilog=shown)(reconcile)
    shown = examples(
        "holdfast trace o-1 --config holdfast.yaml",
        "holdfast trace o-1 --channel orders --scan --config holdfast.yaml --json",
    )
    app.command(epilog=shown)(trace)
