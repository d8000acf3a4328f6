"""`holdfast ingest`: channels into the warehouse, each event once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import wiring
from holdfast.cli import logs
from holdfast.cli.options import (
    INCOMPLETE,
    By,
    ConfigFile,
    Json,
    LogFormat,
    MetricsPort,
    Urls,
    Yes,
    examples,
    flat,
)
from holdfast.cli.output import say, write_json, write_pairs, write_table
from holdfast.cli.pipeline import (
    Checkpoints,
    Master,
    WalPath,
    WarehouseUrl,
    check_archive,
    check_wal,
    plan_of,
    wal_config,
)
from holdfast.cli.session import warn_unmatched
from holdfast.cli.spark import stop_requested
from holdfast.model.errors import InvalidInput

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.pipeline.connection import Connection
    from holdfast.pipeline.ingest.driver import IngestSummary
    from holdfast.pipeline.ingest.plan import IngestPlan
    from holdfast.pipeline.ingest.repair import DamagedBatch
    from holdfast.pipeline.wal import Wal

log = logging.getLogger(__name__)
app = typer.Typer(rich_markup_mode=None)
CHECKPOINTS = wiring.HOME / "ingest"

Once = Annotated[bool, typer.Option("--once", help="Ingest what is there now, and end.")]
Channels = Annotated[
    list[str] | None,
    typer.Option("--channel", metavar="PATTERN", help="Instead of the file's channels; may be repeated."),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive", metavar="URL", help="Instead of the file's archives: a folder, s3://bucket/prefix, …"
    ),
]
AcceptLoss = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-loss", metavar="BATCH", help="Give up a batch that stays damaged; may be repeated."
    ),
]


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "holdfast ingest --config holdfast.yaml",
        "holdfast ingest --once --channel orders --warehouse duckdb:///data/warehouse.duckdb",
        "holdfast ingest --channel 'gbe.events.>' --wal s3://bucket/wal --master spark://host:7077",
    ),
)
def ingest(
    context: typer.Context,
    once: Once = False,
    channels: Channels = None,
    wal: WalPath = None,
    warehouse: WarehouseUrl = None,
    master: Master = "local[*]",
    checkpoints: Checkpoints = CHECKPOINTS,
    metrics_port: MetricsPort = None,
    urls: Urls = None,
    config: ConfigFile = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Put channels into the warehouse through a write-ahead log, each event once.

    Runs until SIGTERM or Ctrl-C. One ingest is at work at a time; another one waits for its turn, or with
    --once ends with 1. With --once it ends with 4 where an event that was read is not in the warehouse: it
    waits in the WAL, its batch is damaged and could not be repaired, or it has failed and nobody has dealt
    with it.
    """
    if context.invoked_subcommand is not None:
        return
    from holdfast.config.load import load

    flags = {
        "url": flat(urls),
        "ingest.channels": channels or None,
        "ingest.wal.path": wal,
        "ingest.warehouse": warehouse,
        "ingest.metrics_port": metrics_port,
    }
    effective = load(config, flags=flags).config
    logs.configure_driver("ingest", log_format, effective, as_json=as_json)
    summary = _ingest(effective, plan_of(effective), checkpoints, master, once=once)
    _print(summary, as_json)
    if not summary.complete:
        say(f"not all is in the warehouse: {_missing(summary)}")
        if once:
            raise typer.Exit(INCOMPLETE)


@app.command(
    epilog=examples(
        "holdfast ingest repair --config holdfast.yaml",
        "holdfast ingest repair --wal s3://bucket/wal --archive s3://bucket/prefix",
        "holdfast ingest repair --accept-loss 4f0c… --notes 'the disk is gone' --config holdfast.yaml",
    )
)
def repair(
    by: By,
    accept_loss: AcceptLoss = None,
    notes: Annotated[str, typer.Option("--notes", help="Why, with --accept-loss.")] = "",
    yes: Yes = False,
    wal: WalPath = None,
    archive: Archive = None,
    warehouse: WarehouseUrl = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Read every batch of the WAL that is not in the warehouse, and stage damaged and lost ones anew.

    Their events are read from the log, else from the archive. The ingest does so by itself whenever it finds
    damage. It may be at work meanwhile, and loads what was repaired. Ends with 4 where a batch stays damaged.

    With --accept-loss, a batch that stays damaged is given up: its events count as failed and abandoned,
    which is audited, and the ingest is complete without them. Stop the ingest first where the warehouse is
    a DuckDB file.
    """
    from holdfast.pipeline.connection import Connection
    from holdfast.pipeline.ingest.commit import StoreCursors
    from holdfast.pipeline.ingest.repair import Repairs, inspect
    from holdfast.pipeline.stores import open_store
    from holdfast.pipeline.wal import Wal

    flags = {"url": flat(urls), "ingest.wal.path": wal, "ingest.warehouse": warehouse}
    effective = wal_config(config, flags)
    plan = plan_of(effective)
    check_wal(plan.wal.path)
    if archive is not None:
        check_archive(archive)
    wal_log = Wal(open_store(plan.wal.path), plan.wal)
    with wiring.addresses(effective.url) as addresses, Connection(addresses) as connection:
        inspect(wal_log, StoreCursors(connection).positions())
        repairs = Repairs(wal_log, connection, plan.rules, [archive] if archive else plan.archives)
        done, left = repairs.run_once(), repairs.left
        lost = []
        if accept_loss:
            chosen = _chosen(accept_loss, left, yes=yes)
            lost = _accept_loss(wal_log, plan, connection, chosen, by, notes or "accepted")
            left = [each for each in left if each not in chosen]
    if as_json:
        write_json({"repaired": done, "lost": lost, "left": left})
    elif not done and not left and not lost:
        say("nothing in the WAL is damaged")
    else:
        write_table(
            ["BATCH", "EVENTS", "NOW"],
            [(each.batch, each.events, f"pending, from {each.origin}") for each in done]
            + [(each["batch"], each["events"], "lost, and abandoned") for each in lost]
            + [(each.batch, None, f"damaged: {each.error}") for each in left],
        )
    if left:
        raise typer.Exit(INCOMPLETE)


def _chosen(names: Sequence[str], left: Sequence[DamagedBatch], *, yes: bool) -> list[DamagedBatch]:
    """Those of the batches that stay damaged that somebody named, and confirmed."""
    unknown = sorted(set(names) - {each.batch for each in left})
    if unknown:
        raise InvalidInput(f"batch {unknown[0]!r} is not damaged, or was repaired just now; nothing was lost")
    chosen = [each for each in left if each.batch in names]
    if not yes:
        told = "; ".join(f"{each.batch}: {each.error}" for each in chosen)
        typer.confirm(f"The events of these batches are given up. {told}. Go on?", abort=True, err=True)
    return chosen


def _accept_loss(
    wal: Wal, plan: IngestPlan, connection: Connection, chosen: Sequence[DamagedBatch], by: str, notes: str
) -> list[dict[str, object]]:
    from holdfast.deadletters.audit import Audit
    from holdfast.pipeline.failed.service import FailedEvents
    from holdfast.pipeline.warehouse import open_warehouse

    warehouse = open_warehouse(plan.warehouse, plan.tables)
    failed = FailedEvents(wal, warehouse, plan.tables)
    audit, lost = Audit(connection.backends[0], plan.namespace), []
    try:
        for each in chosen:
            events = failed.accept_loss(each.batch, by, notes)
            connection.run(audit.did(by, "accept loss", f"batch {each.batch}: {events} events"))
            lost.append({"batch": each.batch, "events": events})
    finally:
        warehouse.close()
    return lost


def _missing(summary: IngestSummary) -> str:
    """What is not in the warehouse, in words."""
    parts = [f"{summary.left:,} events are left in the WAL"] if summary.left else []
    if summary.quarantined:
        names, more = [each.batch for each in summary.quarantined[:3]], len(summary.quarantined) - 3
        shown = ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
        parts.append(f"damaged, and could not be repaired (see holdfast ingest repair): {shown}")
    if summary.unresolved:
        parts.append(f"{summary.unresolved:,} failed events wait for somebody (see holdfast failed list)")
    return "; ".join(parts)


def _ingest(config: Config, plan: IngestPlan, checkpoints: Path, master: str, *, once: bool) -> IngestSummary:
    from holdfast.cli.spark import session
    from holdfast.pipeline.ingest.driver import Ingest

    with wiring.addresses(config.url) as urls, ExitStack() as stack:
        if once:
            asyncio.run(warn_unmatched(config, urls, plan.channels))
        spark = stack.enter_context(session(master, name="holdfast ingest", plans=True))
        job = Ingest(spark, urls, plan, checkpoints)
        if config.ingest.metrics_port is not None:
            try:
                port = stack.enter_context(job.metrics.serve(config.ingest.metrics_port))
            except OSError as error:
                wanted = config.ingest.metrics_port
                raise InvalidInput(
                    f"cannot answer metrics on port {wanted}: {error}; choose another"
                ) from None
            log.info("metrics on http://127.0.0.1:%s/metrics", port)
        if once:
            return job.run_once()
        return job.run(stack.enter_context(stop_requested("finishing the batch at hand")))


def _print(summary: IngestSummary, as_json: bool) -> None:
    if as_json:
        write_json(summary)
        return
    found = summary.recovery
    write_pairs(
        {
            "written to the WAL": summary.written,
            "loaded": summary.loaded,
            "failed": summary.failed,
            "left in the WAL": summary.left,
            "repaired": summary.repaired,
            "damaged batches": [each.batch for each in summary.quarantined],
            "failed and unresolved": summary.unresolved,
            "found at the start": found.pending,
        }
    )
